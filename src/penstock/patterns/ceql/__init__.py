"""CEQL, a front end: from text to the formula that the other modules work on."""
