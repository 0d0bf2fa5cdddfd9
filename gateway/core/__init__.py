"""The words of the house: call, reply, outcome, error, and the faces through which rooms meet."""
