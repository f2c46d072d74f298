package io.djltp.collective;

import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.collective.nccl.NcclGroups;
import io.djltp.internal.collective.tcp.TcpGroups;

import java.time.Duration;
import java.util.List;

/** The backends on which the tests of collectives run: all must behave alike. */
public enum TestBackend {
    /** Threads that share memory. */
    LOCAL {
        @Override
        public List<Communicator> create(int size, Duration timeout) {
            return LocalCommunicator.create(size, timeout);
        }
    },
    /** Threads that are connected by sockets. */
    TCP {
        @Override
        public List<Communicator> create(int size, Duration timeout) {
            return TcpGroups.create(size, timeout);
        }
    },
    /** Threads on the double of NCCL. */
    NCCL {
        @Override
        public List<Communicator> create(int size, Duration timeout) {
            return NcclGroups.create(size, timeout);
        }
    };

    /**
     * Returns the backend that this run of the tests is for.
     *
     * @return what the system property {@code djltp.test.backend} says
     */
    public static TestBackend current() {
        return valueOf(System.getProperty("djltp.test.backend", "local").toUpperCase());
    }

    /**
     * Creates a group.
     *
     * @param size the number of ranks
     * @param timeout how long a rank waits for the others
     * @return one communicator for each rank's thread
     */
    public abstract List<Communicator> create(int size, Duration timeout);
}
