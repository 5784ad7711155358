from cc.base cimport Control

cdef class CreditControl(Control):
    cdef public long long first
    cdef public object parameters
