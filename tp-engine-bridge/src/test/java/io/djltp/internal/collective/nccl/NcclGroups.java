package io.djltp.internal.collective.nccl;

import ai.djl.Device;

import io.djltp.collective.Communicator;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** Groups of the {@code nccl} backend in one process, on the double, with tensors of the CPU. */
public final class NcclGroups {

    private NcclGroups() {}

    /**
     * Creates a group.
     *
     * @param size the number of ranks, up to 8
     * @param timeout how long a rank waits for the others
     * @return one communicator for each rank's thread
     * @throws org.testng.SkipException if the double cannot be built
     */
    public static List<Communicator> create(int size, Duration timeout) {
        NcclDouble.load();
        List<Device> devices = Collections.nCopies(size, Device.cpu());
        return new ArrayList<>(
                NcclCommunicator.create(NcclCommunicator.newUniqueId(), size, 0, devices, timeout));
    }
}
