package io.djltp.rank;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.internal.collective.local.LocalCommunicator;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A rank's groups by the name of the axis along which its ranks lie. They are parts of the group of
 * all ranks and end with it; an axis of one rank needs no part, and one of all ranks is that group.
 */
final class MeshGroups implements AutoCloseable {

    /** The axes that a mesh may have. */
    static final List<String> AXES = List.of(DeviceMesh.DATA, DeviceMesh.TENSOR);

    private final DeviceMesh mesh;
    private final Communicator world;
    private final Communicator alone;
    private final Map<String, Communicator> groups = new LinkedHashMap<>();

    MeshGroups(DeviceMesh mesh, Communicator world, Duration timeout) {
        this.mesh = mesh;
        this.world = world;
        alone = LocalCommunicator.create(1, timeout).get(0);
        for (String axis : mesh.getNames()) {
            if (mesh.getSize(axis) == world.getSize()) {
                groups.put(axis, world);
            } else if (mesh.getSize(axis) == 1) {
                groups.put(axis, alone);
            }
        }
    }

    /** Connects the ranks of this process with all ranks. All processes call it. */
    static List<MeshGroups> connect(ParallelConfig config) {
        Duration timeout = config.getTimeout();
        return config.getBackend().connect(config.getDevices(), config.getJob(), timeout).stream()
                .map(world -> new MeshGroups(config.getMesh(), world, timeout))
                .toList();
    }

    /** Forms the other groups. All ranks call it, each in its thread. */
    void split() {
        for (String axis : mesh.getNames()) {
            if (!groups.containsKey(axis)) {
                int color = mesh.getFirstRank(world.getRank(), axis);
                int key = mesh.getCoordinate(world.getRank(), axis);
                world.setIssuer("the groups of the mesh");
                groups.put(axis, world.split(color, key, "axis " + axis));
                world.setIssuer(null);
            }
        }
    }

    /** Returns the group of all ranks. */
    Communicator getWorld() {
        return world;
    }

    /**
     * Returns the group along an axis.
     *
     * @param axis the name of the axis
     * @return the group; of one rank for an axis that may be, and is not in this mesh
     * @throws IllegalArgumentException if there is no such axis
     */
    Communicator get(String axis) {
        Communicator group = groups.get(axis);
        if (group == null && AXES.contains(axis)) {
            return alone;
        }
        if (group == null) {
            mesh.getSize(axis); // names those that there are
        }
        return group;
    }

    /** Returns what this rank has called in all of its groups. */
    CollectiveCounts getCounts() {
        CollectiveCounts counts = world.getCounts();
        for (Communicator group : groups.values()) {
            if (group != world) {
                counts = counts.plus(group.getCounts());
            }
        }
        return counts;
    }

    @Override
    public void close() {
        groups.values().stream().filter(group -> group != world).forEach(Communicator::close);
        alone.close();
        world.close();
    }
}
