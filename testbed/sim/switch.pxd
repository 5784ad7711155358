from testbed.sim.frame cimport Frame
from testbed.sim.mix cimport Draws, mix
from testbed.sim.port cimport Node, Port

cdef long long ECMP
cdef long long SPRAY

cdef class Switch(Node):
    cdef public object name
    cdef public int mode
    cdef public unsigned long long seed
    cdef public Draws draws
    cdef public long long number
    cdef public list down
    cdef public list ways
    cdef long long _choose(self, Frame frame, object ways, unsigned long long count, long long now)
