from transport.sequence cimport wrap

cdef long long NEVER

cdef class Closing:
    cdef public object connection
    cdef public bint begun
    cdef public bint said
    cdef public bint peer_closed
    cdef public bint over
    cdef public object mark
    cdef public long long until
