from transport.paths cimport PathSet
from transport.probes cimport Prober
from transport.timers cimport Ready, Source, Timers

cdef long long NEVER
cdef long long CLASS_DATA
cdef long long DATAGRAM
cdef long long ECT_0

cdef class Peer(Source):
    cdef public object name
    cdef public object planes
    cdef public PathSet paths
    cdef public list subflows
    cdef public Prober prober
    cdef public Timers timers
    cdef public Ready ready
    cdef public Source carrier
    cdef public long long users
    cdef public bint probes
    cpdef object activity(self, long long now, Source connection)
