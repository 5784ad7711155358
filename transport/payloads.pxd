from transport.control cimport Ack

cdef long long _HOLD_UNIT
cdef long long _MAX_HOLD
cdef long long _MASK24

cpdef bytes encode(object control)
cpdef object decode(bytes data, bint reliable)
cpdef bint is_reliable(long long kind) noexcept
cdef bytes _encode(object control)
cdef bytes _encode_ack(Ack ack)
cdef bytes _encode_msg(object msg)
cdef bint _canonical(long long bits, bytes received, bytes marked) noexcept
cdef long long _hold(long long hold) noexcept
cdef Ack _decode_ack(bytes data)
cdef object _decode_msg(bytes data)
cdef object _decode_advert(bytes data)
cdef object _decode_probe(bytes data)
