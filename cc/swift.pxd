from cc.base cimport Control
from cc.signals cimport AckSignal, LossSignal

cdef class Swift(Control):
    cdef public double cwnd
    cdef double _base_target
    cdef double _fs_range
    cdef double _fs_alpha
    cdef double _fs_beta
    cdef double _ai
    cdef double _beta
    cdef double _max_mdf
    cdef double _min
    cdef double _given
    cdef double _run_cwnd
    cdef long long _segment
    cdef long long _line_rate
    cdef long long _max_window
    cdef long long _retx_reset
    cdef long long _unmoved_rounds
    cdef long long _rtt
    cdef long long _last_decrease
    cdef long long _retransmits
    cdef long long _given_since
    cdef long long _run
    cdef long long _run_delay
    cpdef double target(self)
    cpdef bint _unmoved(self, double delay)
    cpdef object _set(self, double cwnd)
