from transport.channel cimport Channel
from transport.context cimport Context
from transport.sequence cimport unwrap, wrap

cdef class Starter:
    cdef public Context context
    cdef public Channel channel
    cdef public object sender
    cdef public object unsent
    cdef public object responses
    cdef public object adverts
    cdef public dict early_adverts
    cdef public long long next_advert
    cdef public dict reads
    cdef public long long next_read
    cpdef bint waiting(self)
    cpdef bint start(self, long long now)
