from transport.channel cimport Channel
from transport.context cimport Context
from transport.control cimport Ack
from transport.ledger cimport Ledger
from transport.packet cimport Packet
from transport.sequence cimport unwrap, wrap

cdef long long NEVER
cdef long long OP_READ_RESPONSE
cdef long long OP_SEND_IMM
cdef long long OP_WRITE_IMM
cdef long long SPACE_CONTROL
cdef long long SPACE_DATA
cdef long long CE
cdef long long DATAGRAM
cdef long long PSN_MASK
cdef long long _REMOTE_WRITE

cdef class Receiver:
    cdef public Context context
    cdef public Channel channel
    cdef public Ledger ledger
    cdef public object connection
    cdef public object queue
    cdef public long long head
    cdef public long long advertised
    cdef public list answers
    cdef public bint ack_now
    cdef public long long ack_due
    cdef public long long unacked
    cdef public long long nacked
    cdef bint last_marked
    cdef long long reject_at
    cdef int told
    cdef int trigger_space
    cdef long long trigger_seq
    cdef long long trigger_psn
    cdef long long trigger_entropy
    cdef long long trigger_plane
    cdef long long trigger_at
    cdef list hops
    cpdef object on_data(self, long long now, Packet packet)
    cpdef object on_control_arrival(self, long long now, Packet packet)
    cpdef object deliver(self, long long now)
    cpdef long long transmit_ack(self, long long now, object out)
    cdef object _trigger(self, long long now, int space, long long sequence, long long psn, Packet packet)
    cdef object _schedule(self, long long now)
    cdef object _on_trimmed(self, long long now, Packet packet)
    cdef object _reject(self, long long now, Packet packet)
