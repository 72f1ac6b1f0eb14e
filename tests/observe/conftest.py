from tests.control.rig import runtime_directory

__all__ = ["runtime_directory"]
