package io.djltp.rank;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.internal.torch.GradientKeeper;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.InnerPass;
import io.djltp.region.RegionMappings;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

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
    private ForwardPass pass;
    private boolean forwarding;
    private final RandomSeeds random = new RandomSeeds();

    ParallelContext(DeviceMesh mesh, int localIndex, MeshGroups groups, Device device) {
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
    public static ParallelContext current() {
        return CURRENT.get();
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
    Throwable takeFailure() {
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
        InnerPass.checkKeeps(pass, "A head, table or other block that updates its own parameters");
        return participants;
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
    public void beginForward(long batch, long rows, boolean cut, NDManager manager) {
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
        return forwarding || pass instanceof InnerPass;
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
}
