from cc.base cimport Control

cdef class Fixed(Control):
    pass
