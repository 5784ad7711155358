from transport.channel cimport Channel
from transport.context cimport Context
from transport.ledger cimport Ledger
from transport.sender cimport Sender
from transport.sequence cimport unwrap

cdef long long FETCH_ADD
cdef long long _REMOTE_READ
cdef long long _REMOTE_ATOMIC

cdef class Responder:
    cdef public Context context
    cdef public Channel channel
    cdef public Ledger ledger
    cdef public Sender sender
    cdef public object connection
    cdef public list pending
    cpdef object run(self, long long now)
