"""What a user gets wrong and `mypy --strict` must refuse, with the code of its error behind each line; never run."""

from __future__ import annotations

import penstock as ps
from penstock import *  # noqa: F403

flow = ps.Flow("flights")
events = flow.source("events", ps.files("in", "tail string"), time="at")
keyed = events.key_by("tail")

ps.tumblng("1 hour")  # refused: attr-defined
ps.kafka("topic")  # refused: attr-defined
ps.import_module("penstock")  # refused: attr-defined
KeyedStream(flow)  # noqa: F405  # refused: call-arg
ps.Flow(1)  # refused: arg-type
ps.files("in")  # refused: call-arg
ps.files("in", "tail string", "xml")  # refused: arg-type
ps.sum()  # refused: call-arg
ps.sql("sqlite:///a.db", "t", "merge")  # refused: arg-type
flow.sorce("events", ps.rate())  # refused: attr-defined
flow.source("events", ps.noop())  # refused: arg-type
flow.source("events", ps.rate(), on_error="drop")  # refused: arg-type
flow.source("events", ps.rate(), latenes="1 second")  # refused: call-arg
events.filtr("delay > 0")  # refused: attr-defined
events.aggregate(n=ps.count())  # refused: attr-defined
events.sink("out")  # refused: arg-type
events.key_by("tail", workers="2")  # refused: arg-type
events.key_by("tail", distribute="even")  # refused: arg-type
keyed.aggregat(n=ps.count())  # refused: attr-defined
keyed.aggregate(ps.count())  # refused: arg-type
keyed.aggregate("update", ps.count())  # refused: arg-type
keyed.aggregate("final", n=ps.count())  # refused: arg-type
keyed.aggregate(n=1)  # refused: arg-type
keyed.aggregate(n="delay")  # refused: arg-type
keyed.aggregate(name=1, n=ps.count())  # refused: arg-type
keyed.window(ps.tumbling("1 hour")).aggregate(n="delay")  # refused: arg-type
keyed.stateful_map(lambda key, event: (None, None), "n bigint")  # refused: arg-type, misc
keyed.process(ps.count())  # refused: arg-type
keyed.process(ps.Operator(), on_error="skip")  # refused: arg-type
keyed.window("1 hour")  # refused: arg-type
keyed.window(ps.tumbling("1 hour")).where("delay > 0")  # refused: attr-defined
keyed.join(events, "1 hour", "cross")  # refused: arg-type
flow.start()  # refused: call-overload
flow.start("local", checkpoint="c")  # refused: call-overload
flow.start(checkpoint="c", worker=2)  # refused: call-overload
flow.start(checkpoint="c", workers="2")  # refused: call-overload
flow.start(checkpoint="c", trigger=[0.2])  # refused: call-overload
flow.start(checkpoint="c", recover="snapshot")  # refused: call-overload
flow.start(checkpoint="c", drain="no")  # refused: call-overload
flow.start(checkpoint="c", step_budget=[50])  # refused: call-overload
flow.start(checkpoint="c", forget=1)  # refused: call-overload
flow.start(checkpoint="c").scal("tail", 4)  # refused: attr-defined
flow.start(checkpoint="c").scale("tail", "4")  # refused: arg-type
flow.start(checkpoint="c").scale("tail", 4).wiat()  # refused: attr-defined
