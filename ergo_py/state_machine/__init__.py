"""`StateMachine`: an actor whose handlers depend on its state."""
