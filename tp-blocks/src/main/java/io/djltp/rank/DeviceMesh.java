package io.djltp.rank;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.collective.local.LocalCommunicator;
import io.djltp.launch.Connector;
import io.djltp.layout.ParallelMode;

import java.util.ArrayList;
import java.util.List;

/**
 * Which ranks compute together: every rank has a place in a tensor-parallel group, over which the
 * layers are cut, and in a data-parallel group, over which the batch is cut.
 *
 * <p>In {@link ParallelMode#MIXED} mode both are the group of all ranks.
 */
final class DeviceMesh {

    private final ParallelConfig config;

    DeviceMesh(ParallelConfig config) {
        this.config = config;
    }

    /** Creates the contexts of this process's ranks, with communicators that reach all. */
    List<ParallelContext> connect() {
        List<? extends Communicator> all =
                Connector.connect(
                        config.getBackend(),
                        config.getDevices(),
                        config.getJob(),
                        config.getTimeout());
        List<ParallelContext> contexts = new ArrayList<>(all.size());
        for (int i = 0; i < all.size(); i++) {
            Communicator world = all.get(i);
            boolean tensor = config.getMode() != ParallelMode.DATA;
            boolean data = config.getMode() != ParallelMode.TENSOR;
            Device device = config.getDevices().get(i);
            contexts.add(
                    new ParallelContext(
                            config.getMode(),
                            i,
                            world,
                            tensor ? world : alone(),
                            data ? world : alone(),
                            device));
        }
        return contexts;
    }

    private Communicator alone() {
        return LocalCommunicator.create(1, config.getTimeout()).get(0);
    }
}
