from cc.signals cimport AckSignal, LossSignal

cdef class Control:
    cdef public long long window
    cdef public long long rate
    cpdef object on_ack(self, long long now, AckSignal ack)
    cpdef object on_loss(self, long long now, LossSignal loss)
    cpdef object on_timeout(self, long long now)
    cpdef object on_idle(self, long long now, long long idle)
    cpdef object on_path_change(self, long long now)
