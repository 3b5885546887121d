from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Incarnation(_message.Message):
    __slots__ = ("number", "nonce")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    nonce: int
    def __init__(self, number: _Optional[int] = ..., nonce: _Optional[int] = ...) -> None: ...

class Crew(_message.Message):
    __slots__ = ("term", "root", "places", "times")
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    term: int
    root: int
    places: _containers.RepeatedScalarFieldContainer[int]
    times: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, term: _Optional[int] = ..., root: _Optional[int] = ..., places: _Optional[_Iterable[int]] = ..., times: _Optional[_Iterable[int]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("protocol", "run", "layout", "epoch", "sender", "receiver", "number", "base", "acked", "incarnation", "seen", "dtype", "n", "offset", "frame", "version", "crew", "ended")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREW_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    layout: bytes
    epoch: int
    sender: str
    receiver: str
    number: int
    base: int
    acked: int
    incarnation: Incarnation
    seen: Incarnation
    dtype: str
    n: int
    offset: int
    frame: int
    version: str
    crew: Crew
    ended: bool
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., layout: _Optional[bytes] = ..., epoch: _Optional[int] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., number: _Optional[int] = ..., base: _Optional[int] = ..., acked: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., seen: _Optional[_Union[Incarnation, _Mapping]] = ..., dtype: _Optional[str] = ..., n: _Optional[int] = ..., offset: _Optional[int] = ..., frame: _Optional[int] = ..., version: _Optional[str] = ..., crew: _Optional[_Union[Crew, _Mapping]] = ..., ended: bool = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("protocol", "run", "epoch", "number", "incarnation", "seen", "crew", "ended")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    CREW_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    epoch: int
    number: int
    incarnation: Incarnation
    seen: Incarnation
    crew: Crew
    ended: bool
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., seen: _Optional[_Union[Incarnation, _Mapping]] = ..., crew: _Optional[_Union[Crew, _Mapping]] = ..., ended: bool = ...) -> None: ...
