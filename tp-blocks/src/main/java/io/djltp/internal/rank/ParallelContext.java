package io.djltp.internal.rank;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.FlightRecorder;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.events.FlightEvents;
import io.djltp.internal.events.PassEvent;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.region.RegionMappings;
import io.djltp.internal.torch.GradientKeeper;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.stream.Stream;

/**
 * What a rank knows about itself: its number, its device, the groups that it computes in, and how
 * the arrays of the present forward pass are laid out over the ranks.
 *
 * <p>DJL's {@link Device} cannot tell two ranks on one CPU apart; the context is where the rank's
 * identity lives. Blocks get it from their parameter store, losses from {@link #current()}.
 */
public final class ParallelContext implements AutoCloseable {

    private static final ThreadLocal<ParallelContext> CURRENT = new ThreadLocal<>();

    private final DeviceMesh mesh;
    private final int localIndex;
    private final MeshGroups groups;
    private final List<Communicator> tensorParts = new ArrayList<>();
    private final Device device;
    private final RankMappings mappings = new RankMappings();
    private final GradientKeeper gradientKeeper = new GradientKeeper();

    private final StepParticipants participants = new StepParticipants();
    private boolean rowSparse;
    private Supplier<ParticipantStep> stepAhead =
            () -> {
                throw new IllegalStateException("There is no trainer");
            };
    private ForwardPass pass;
    private boolean forwarding;
    private final RandomSeeds random = new RandomSeeds();

    private ParallelContext(DeviceMesh mesh, int localIndex, MeshGroups groups, Device device) {
        this.mesh = mesh;
        this.localIndex = localIndex;
        this.groups = groups;
        this.device = device;
        pass = new ForwardPass(0, 0, 1, mesh.isOverlaid(), null, false, 0);
    }

    /** Creates the contexts of this process's ranks, with communicators that reach all. */
    static List<ParallelContext> connect(ParallelConfig config) {
        List<ParallelContext> contexts = new ArrayList<>();
        for (MeshGroups groups : MeshGroups.connect(config)) {
            int index = contexts.size();
            Device device = config.getDevices().get(index);
            contexts.add(new ParallelContext(config.getMesh(), index, groups, device));
        }
        return contexts;
    }

    /**
     * Returns the context of the rank whose thread this is.
     *
     * @return the context, or {@code null} outside the threads of ranks
     */
    public static @Nullable ParallelContext current() {
        return CURRENT.get();
    }

    /**
     * Computes something of this rank in any thread: on GPUs, libtorch runs backward passes in
     * threads of its own.
     *
     * @param task what is computed, for which the rank is {@link #current()}
     * @param <T> the type of the result
     * @return the result
     */
    public <T> T call(Supplier<T> task) {
        ParallelContext before = CURRENT.get();
        CURRENT.set(this);
        try {
            return task.get();
        } finally {
            CURRENT.set(before);
        }
    }

    /** Makes this thread the rank's, and forms its groups. All ranks call it. */
    void begin() {
        CURRENT.set(this);
        groups.split();
    }

    /**
     * Returns how the ranks are arranged.
     *
     * @return the mesh
     */
    public DeviceMesh getMesh() {
        return mesh;
    }

    /**
     * Returns this rank's number in the job.
     *
     * @return the rank, from 0
     */
    public int getRank() {
        return getWorld().getRank();
    }

    /**
     * Returns this rank's place among the ranks of its process.
     *
     * @return the index, from 0
     */
    public int getLocalIndex() {
        return localIndex;
    }

    /**
     * Returns the group of all ranks.
     *
     * @return this rank's end of the group
     */
    public Communicator getWorld() {
        return groups.getWorld();
    }

    /**
     * Returns the group along an axis of the mesh.
     *
     * @param axis the name of the axis
     * @return this rank's end of the group; of one rank for an axis that the mesh could have
     * @throws IllegalArgumentException if there is no such axis
     */
    public Communicator getGroup(String axis) {
        return groups.get(axis);
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public int getSize() {
        return getWorld().getSize();
    }

    /**
     * Returns the device on which this rank computes.
     *
     * @return the device
     */
    public Device getDevice() {
        return device;
    }

    /**
     * Returns the group over which tensor-parallel layers are cut.
     *
     * @return this rank's end of the group
     */
    public Communicator getTensorGroup() {
        return groups.get(DeviceMesh.TENSOR);
    }

    /**
     * Forms new groups of the tensor-parallel ranks: those with the same color compute together.
     * All of them call it.
     *
     * @param color which group this rank joins, 0 or more
     * @return this rank's end of the new group, which is closed with this context
     */
    public Communicator splitTensorGroup(int color) {
        Communicator part = getTensorGroup().split(color, getTensorGroup().getRank());
        tensorParts.add(part);
        return part;
    }

    /**
     * Returns the group over which the batch is cut.
     *
     * @return this rank's end of the group
     */
    public Communicator getDataGroup() {
        return groups.get(DeviceMesh.DATA);
    }

    /**
     * Sets what errors and counts call blocks from the next mappings on. Default: their class.
     *
     * @param names the names, by the identity of the block
     */
    public void setBlockNames(Map<Block, String> names) {
        mappings.setNames(names);
    }

    /**
     * Returns the autograd mappings in and out of tensor-parallel regions.
     *
     * @param user the layer that uses them, which errors then name
     * @return the mappings
     */
    public RegionMappings getMappings(Block user) {
        return mappings.get(user, getTensorGroup());
    }

    /**
     * Returns the autograd mappings for code outside of layers.
     *
     * @return the mappings
     */
    public RegionMappings getMappings() {
        return mappings.get("", getTensorGroup());
    }

    /**
     * Returns the autograd mappings that put the rows of the batch together.
     *
     * @return the mappings, of the data-parallel group
     */
    public RegionMappings getBatchMappings() {
        return mappings.get("the rows of the batch", getDataGroup());
    }

    /** Returns the first exception in a backward pass, and forgets it. */
    @Nullable Throwable takeFailure() {
        return mappings.takeFailure();
    }

    /**
     * Returns where losses leave gradients that they have computed with their value.
     *
     * @return the keeper
     */
    public GradientKeeper getGradientKeeper() {
        return gradientKeeper;
    }

    /**
     * Returns what blocks keep on this rank until the step.
     *
     * @return the participants
     */
    public StepParticipants getParticipants() {
        pass.checkKeeps("A head, table or other block that updates its own parameters");
        return participants;
    }

    /**
     * Sets what begins the next step for a participant that updates its parameters before.
     *
     * @param step returns the step
     */
    public void setStepAhead(Supplier<ParticipantStep> step) {
        stepAhead = step;
    }

    /**
     * Begins the next step for a participant that updates its parameters before the backward pass,
     * with the learning rates and the state of the optimizer that the step will have.
     *
     * @return the step
     * @throws IllegalArgumentException if something of all gradients is to be known before a step
     */
    public ParticipantStep getStepAhead() {
        return stepAhead.get();
    }

    /**
     * Sets whether the optimizer leaves rows without a gradient alone, so that tables need no
     * gradient of all of their rows.
     *
     * @param sparse whether it does
     */
    public void setRowSparse(boolean sparse) {
        rowSparse = sparse;
    }

    /**
     * Returns whether tables are updated by the rows that were used.
     *
     * @return whether they are
     */
    public boolean isRowSparse() {
        return rowSparse;
    }

    /**
     * Returns how many collective operations this rank has taken part in.
     *
     * @return a snapshot of the counts
     */
    public CollectiveCounts getCounts() {
        CollectiveCounts counts = groups.getCounts();
        for (Communicator part : tensorParts) {
            counts = counts.plus(part.getCounts());
        }
        return counts;
    }

    /**
     * Begins a forward pass.
     *
     * @param batch the number of rows of the batch over all ranks
     * @param rows the number of rows that count on this rank
     * @param cut whether this rank has only its part of them
     * @param manager the manager of what is made on the way, or {@code null}
     */
    public void beginForward(long batch, long rows, boolean cut, @Nullable NDManager manager) {
        boolean guarded = random.isChecked() && mesh.isCut(DeviceMesh.TENSOR);
        int sharing = cut ? getDataGroup().getSize() : 1;
        int tensorRank = getTensorGroup().getRank();
        pass =
                new ForwardPass(
                        batch, rows, sharing, mesh.isOverlaid(), manager, guarded, tensorRank);
        forwarding = true;
        RandomDraws.setRefused(guarded && !(mesh.isOverlaid() && cut));
    }

    /** Ends a forward pass. To be called by the thread that began it. */
    public void endForward() {
        forwarding = false;
        RandomDraws.setRefused(false);
    }

    /** {@return whether blocks are computing a forward pass, or a part of one again} */
    public boolean isForwarding() {
        return forwarding || pass.isRepeated();
    }

    /**
     * Returns the present forward pass, or the last one.
     *
     * @return what is known of the pass
     */
    public ForwardPass getPass() {
        return pass;
    }

    /**
     * Goes back to a pass whose output is still there: another one may have come between.
     *
     * @param earlier the pass
     */
    public void resume(ForwardPass earlier) {
        pass = earlier;
    }

    /**
     * Returns what the random numbers of this rank's blocks follow from.
     *
     * @return the seeds
     */
    public RandomSeeds getRandom() {
        return random;
    }

    /**
     * Begins a part of a step, by which collective operations are counted.
     *
     * @param direction the direction
     * @return what ends the part, and returns to the one around it
     */
    public Phase begin(Direction direction) {
        return begin(direction, direction.toString());
    }

    /**
     * Begins a part of a step, by which collective operations are counted.
     *
     * @param direction the direction
     * @param name what Flight Recorder's event is of, if this is no part of the same direction
     * @return what ends the part, and returns to the one around it
     */
    public Phase begin(Direction direction, String name) {
        FlightRecorder recorder = AbstractCommunicator.of(getWorld()).getRecorder();
        Direction before = recorder.setDirection(direction);
        if (before == direction || !FlightEvents.areUsed()) {
            return () -> recorder.setDirection(before);
        }
        PassEvent event = new PassEvent(getRank(), name);
        return () -> {
            recorder.setDirection(before);
            event.commit();
        };
    }

    /** A part of a step. */
    @FunctionalInterface
    public interface Phase extends AutoCloseable {

        @Override
        void close();
    }

    /** Ends the groups of this rank. */
    void abort(Throwable cause) {
        getWorld().abort(cause);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        participants.close();
        gradientKeeper.close();
        mappings.close();
        tensorParts.forEach(Communicator::close);
        groups.close();
    }

    /**
     * A rank's groups by the name of the axis along which its ranks lie. They are parts of the
     * group of all ranks and end with it; an axis of one rank needs no part, and one of all ranks
     * is that group.
     */
    private static final class MeshGroups implements AutoCloseable {

        /** The axes that a mesh may have. */
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
            return config
                    .getBackend()
                    .connect(config.getDevices(), config.getJob(), timeout)
                    .stream()
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
            if (group != null) {
                return group;
            }
            if (!DeviceMesh.AXES.contains(axis)) {
                mesh.getSize(axis); // names those that there are
            }
            return alone;
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

    /**
     * The autograd mappings of a rank, by who uses them: what their gradient hooks communicate is
     * then known to be the user's, in errors and counts.
     */
    private static final class RankMappings implements AutoCloseable {

        private final Map<Block, RegionMappings> ofBlocks = new IdentityHashMap<>();
        private final Map<String, RegionMappings> ofOthers = new HashMap<>();
        private Map<Block, String> names = Map.of();

        /** Sets what blocks are called, if they have no mappings yet. */
        void setNames(Map<Block, String> names) {
            this.names = names;
        }

        /** Returns the mappings of a block in a group. */
        RegionMappings get(Block user, Communicator group) {
            return ofBlocks.computeIfAbsent(
                    user,
                    key -> {
                        String type = user.getClass().getSimpleName();
                        return new RegionMappings(group, names.getOrDefault(user, type));
                    });
        }

        /** Returns the mappings of another user in a group; nobody is named with "". */
        RegionMappings get(String user, Communicator group) {
            return ofOthers.computeIfAbsent(
                    user,
                    name ->
                            name.isEmpty()
                                    ? new RegionMappings(group)
                                    : new RegionMappings(group, name));
        }

        /** Returns the first exception in a backward pass, and forgets it. */
        @Nullable Throwable takeFailure() {
            Throwable first = null;
            for (RegionMappings users : all().toList()) {
                Throwable failure = users.takeFailure();
                first = first == null ? failure : first;
            }
            return first;
        }

        private Stream<RegionMappings> all() {
            return Stream.concat(ofOthers.values().stream(), ofBlocks.values().stream());
        }

        @Override
        public void close() {
            all().forEach(RegionMappings::close);
        }
    }
}
