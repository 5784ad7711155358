cdef class Packet:
    cdef public int kind
    cdef public int ecn
    cdef public int priority
    cdef public bint ack_request
    cdef public bint solicited
    cdef public bint trimmed
    cdef public long long entropy
    cdef public long long qpn
    cdef public long long src_qpn
    cdef public long long psn
    cdef public long long seq
    cdef public long long count
    cdef public long long segment
    cdef public long long length
    cdef public long long rkey
    cdef public unsigned long long address
    cdef public long long offset
    cdef public long long stride
    cdef public long long tag
    cdef public long long sent_at
    cdef public long long received_at
    cdef public long long plane
    cdef public object src
    cdef public object dst
    cdef public object payload
    cdef public object control
    cdef public list hops
    cpdef Packet copy(self)
    cpdef long long segment_length(self, long long index)
    cpdef Packet split(self, long long first, long long count)
