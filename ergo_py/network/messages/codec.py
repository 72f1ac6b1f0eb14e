"""The MessagePack library, or an error that says how to install it."""

try:
    import msgspec
    from msgspec.msgpack import Ext
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "networks and entities need msgspec, which is not installed; install it with: pip install "
        "'ergo_py[network]' or 'ergo_py[durable]'",
        name="msgspec",
    ) from error

__all__ = ["Ext", "msgspec"]
