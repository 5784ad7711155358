from cc.signals cimport AckSignal, LossSignal
from transport.channel cimport Channel
from transport.context cimport Context
from transport.control cimport Ack
from transport.flight cimport Send, Subflow
from transport.path cimport Path
from transport.sender cimport Sender
from transport.sequence cimport unwrap, wrap

cdef long long MS
cdef long long NEVER
cdef long long SPACE_DATA
cdef long long PSN_MASK

cdef class Recovery:
    cdef public Context context
    cdef public Sender sender
    cdef public Channel channel
    cdef public object connection
    cdef public long long expirations
    cdef public long long acked_at
    cdef public long long heard_at
    cdef public long long newest_acked
    cdef public long long duplicates
    cdef public long long reorder_quarters
    cdef long long batch_path
    cdef long long batch_size
    cdef long long batch_packets
    cdef long long batch_marked
    cpdef bint on_ack(self, long long now, Ack ack)
    cdef long long _sample(self, long long now, Ack ack)
    cdef object _take(self, long long now, Send send, long long dsn, bint marked, bint exact)
    cdef object _flush_batch(self, long long now)
    cdef object _count_duplicates(self, Ack ack)
    cdef object _tell_control(self, long long now, AckSignal signal)
    cpdef object detect(self, long long now, Subflow subflow)
    cpdef long long reorder_age(self, Subflow subflow)
    cpdef object declare(self, long long now, Send send, long long below)
    cpdef long long next_timeout(self, long long now)
    cdef long long _silence_from(self, long long since)
    cpdef object handle_timeout(self, long long now)
