package io.djltp.rank;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.ParallelMode;
import io.djltp.layout.Region;
import io.djltp.loss.FusedHead;
import io.djltp.nn.RowSparseTable;
import io.djltp.region.RegionMappings;
import io.djltp.torch.DropoutMask;
import io.djltp.torch.GradientKeeper;
import io.djltp.torch.RandomDraws;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/**
 * What a rank knows about itself: its number, its device, the groups that it computes in, and how
 * the arrays of the present forward pass are laid out over the ranks.
 *
 * <p>DJL's {@link Device} cannot tell two ranks on one CPU apart; the context is where the rank's
 * identity lives. Blocks get it from their parameter store, losses from {@link #current()}.
 */
public final class ParallelContext implements AutoCloseable {

    private static final ThreadLocal<ParallelContext> CURRENT = new ThreadLocal<>();

    private final ParallelMode mode;
    private final int localIndex;
    private final Communicator world;
    private final Communicator tensorGroup;
    private final Communicator dataGroup;
    private final List<Communicator> tensorParts = new ArrayList<>();
    private final Device device;
    private final Map<String, RegionMappings> mappings = new HashMap<>(); // by who uses them
    private final GradientKeeper gradientKeeper = new GradientKeeper();

    private final Map<Parameter, FusedHead> fusedHeads = new LinkedHashMap<>(); // by weight

    private final Map<Parameter, RowSparseTable> tables = new LinkedHashMap<>();

    private boolean rowSparse;
    private ForwardPass pass;
    private boolean randomCheck;
    private long randomSeed;
    private long randomSeeds;

    ParallelContext(
            ParallelMode mode,
            int localIndex,
            Communicator world,
            Communicator tensorGroup,
            Communicator dataGroup,
            Device device) {
        this.mode = mode;
        this.localIndex = localIndex;
        this.world = world;
        this.tensorGroup = tensorGroup;
        this.dataGroup = dataGroup;
        this.device = device;
        pass = new ForwardPass(mode, getSize(), 0, 0, false, null, false);
    }

    /**
     * Returns the context of the rank whose thread this is.
     *
     * @return the context, or {@code null} outside the threads of ranks
     */
    public static ParallelContext current() {
        return CURRENT.get();
    }

    static void setCurrent(ParallelContext context) {
        CURRENT.set(context);
    }

    /**
     * Returns how the ranks share the work.
     *
     * @return the mode
     */
    public ParallelMode getMode() {
        return mode;
    }

    /**
     * Returns this rank's number in the job.
     *
     * @return the rank, from 0
     */
    public int getRank() {
        return world.getRank();
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
        return world;
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public int getSize() {
        return world.getSize();
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
        return tensorGroup;
    }

    /**
     * Forms new groups of the tensor-parallel ranks: those with the same color compute together.
     * All of them call it.
     *
     * @param color which group this rank joins, 0 or more
     * @return this rank's end of the new group, which is closed with this context
     */
    public Communicator splitTensorGroup(int color) {
        Communicator part = tensorGroup.split(color, tensorGroup.getRank());
        tensorParts.add(part);
        return part;
    }

    /**
     * Returns the group over which the batch is cut.
     *
     * @return this rank's end of the group
     */
    public Communicator getDataGroup() {
        return dataGroup;
    }

    /**
     * Returns the autograd mappings in and out of tensor-parallel regions.
     *
     * @param user the layer that uses them, which errors then name
     * @return the mappings
     */
    public RegionMappings getMappings(Block user) {
        return mappings.computeIfAbsent(
                user.getClass().getSimpleName(), name -> new RegionMappings(tensorGroup, name));
    }

    /**
     * Returns the autograd mappings for code outside of layers.
     *
     * @return the mappings
     */
    public RegionMappings getMappings() {
        return mappings.computeIfAbsent("", name -> new RegionMappings(tensorGroup));
    }

    /**
     * Returns the autograd mappings that put the rows of the batch together.
     *
     * @return the mappings, of the data-parallel group
     */
    public RegionMappings getBatchMappings() {
        return mappings.computeIfAbsent(
                "the rows of the batch", name -> new RegionMappings(dataGroup, name));
    }

    /** Returns the first exception in a backward pass, and forgets it. */
    Throwable takeFailure() {
        Throwable first = null;
        for (RegionMappings users : mappings.values()) {
            Throwable failure = users.takeFailure();
            first = first == null ? failure : first;
        }
        return first;
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
     * Returns the head that computes its loss itself, of a weight.
     *
     * @param weight the weight
     * @param factory makes the head at the first call
     * @return the head
     */
    public FusedHead getFusedHead(Parameter weight, Supplier<FusedHead> factory) {
        return fusedHeads.computeIfAbsent(weight, key -> factory.get());
    }

    /**
     * Returns the heads that compute their loss themselves.
     *
     * @return the heads
     */
    public Collection<FusedHead> getFusedHeads() {
        return fusedHeads.values();
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
     * Returns what is kept of a table until the step.
     *
     * @param table the table
     * @return what is kept of it
     */
    public RowSparseTable getRowSparseTable(Parameter table) {
        return tables.computeIfAbsent(table, RowSparseTable::new);
    }

    /**
     * Returns the tables that are updated by the rows that were used.
     *
     * @return the tables
     */
    public Collection<RowSparseTable> getRowSparseTables() {
        return tables.values();
    }

    /**
     * Returns how many collective operations this rank has taken part in.
     *
     * @return a snapshot of the counts
     */
    public CollectiveCounts getCounts() {
        return world.getCounts();
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
        boolean guarded = randomCheck && tensorGroup.getSize() > 1;
        pass = new ForwardPass(mode, getSize(), batch, rows, cut, manager, guarded);
    }

    /** Ends a forward pass. To be called by the thread that began it. */
    public void endForward() {
        if (randomCheck) {
            RandomDraws.setRefused(false);
        }
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
     * Returns how an array lies over the ranks.
     *
     * @param array an array of the present forward pass
     * @return the region that it is in
     */
    public Region regionOf(NDArray array) {
        return pass.regionOf(array);
    }

    /**
     * Sets whether this rank must not draw from libtorch's generators while all ranks of its tensor
     * group compute the same.
     *
     * @param check whether a draw throws
     */
    public void setRandomCheck(boolean check) {
        randomCheck = check;
    }

    /**
     * Sets what the random numbers of this rank's blocks follow from.
     *
     * @param seed the same number on all ranks
     */
    public void setRandomSeed(long seed) {
        randomSeed = seed;
        randomSeeds = 0;
    }

    /**
     * Returns a seed for a block that has none of its own. The ranks run the same blocks in the
     * same order: a block that asks in its first pass gets the same seed on all of them.
     *
     * @return the seed, another at every call
     */
    public long nextRandomSeed() {
        return DropoutMask.key(randomSeed, randomSeeds++);
    }

    /** Ends the groups of this rank. */
    void abort(Throwable cause) {
        world.abort(cause);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        fusedHeads.values().forEach(FusedHead::close);
        tables.values().forEach(RowSparseTable::close);
        gradientKeeper.close();
        mappings.values().forEach(RegionMappings::close);
        tensorParts.forEach(Communicator::close);
        world.close();
        tensorGroup.close();
        dataGroup.close();
    }
}
