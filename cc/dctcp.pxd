from cc.base cimport Control
from cc.signals cimport AckSignal, LossSignal

cdef class Dctcp(Control):
    cdef public double alpha
    cdef public double cwnd
    cdef public double ssthresh
    cdef double _g
    cdef double _increase
    cdef double _initial
    cdef double _restart_after
    cdef long long _segment
    cdef long long _max_window
    cdef long long _acked
    cdef long long _marked
    cdef long long _observe
    cdef long long _hold
    cdef long long _halved_at
    cdef long long _timeouts
    cpdef object _set(self, double cwnd)
