from cc.base cimport Control
from cc.signals cimport AckSignal, LossSignal
from transport.counters cimport Counters
from transport.credits cimport Account, Grant
from transport.packet cimport Packet
from transport.pacing cimport Pacer
from transport.paths cimport PathSet
from transport.peer cimport Peer
from transport.placement cimport ProtectionDomain
from transport.timers cimport Ready, Source, Timers

cdef long long CLASS_CONTROL
cdef long long PSN_MASK
cdef long long _MAX_BACKOFF

cdef class Context:
    cdef public object config
    cdef public ProtectionDomain domain
    cdef public Counters counters
    cdef public Timers timers
    cdef public Ready ready
    cdef public Source owner
    cdef public Peer peer
    cdef public PathSet paths
    cdef public Control control
    cdef public Pacer pacer
    cdef public Account account
    cdef public Grant grant
    cdef public AckSignal ack_signal
    cdef public LossSignal loss_signal
    cdef public long long qpn
    cdef public long long peer_qpn
    cdef public object planes
    cdef public long long tag_in
    cdef public long long tag_out
    cdef public long long flow
    cdef public long long psn
    cdef public long long segment
    cdef public long long max_run
    cdef public bint classic
    cdef public long long window
    cdef public long long max_ack_bits
    cdef public long long max_advert
    cdef public long long inline
    cdef public long long max_rd_atomic
    cdef public long long ack_every
    cdef public long long base_rtt
    cdef public long long rto_min
    cdef public long long generation
    cdef public long long last_path
    cpdef Packet packet(self, int kind, long long entropy, long long count, long long plane=*)
    cpdef long long plane_of(self, Packet packet)
    cpdef object wake(self)
    cpdef long long round_trip(self)
    cpdef long long ack_delay(self)
    cpdef long long rto(self)
    cpdef long long backed_off(self, long long times)
    cpdef long long give_up(self)
    cpdef long long probe_timeout(self)
