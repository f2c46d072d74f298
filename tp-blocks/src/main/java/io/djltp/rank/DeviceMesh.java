package io.djltp.rank;

import io.djltp.internal.Errors;

import java.util.ArrayList;
import java.util.List;
import java.util.StringJoiner;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * How the ranks of a job are arranged: axes with names, over each of which something is cut. The
 * ranks with the same place on all other axes are a group, which computes together.
 *
 * <pre>
 *   DeviceMesh.of("data", 2, "tensor", 3)
 *
 *                tensor 0   tensor 1   tensor 2
 *   data 0        rank 0     rank 1     rank 2     a tensor group: layers are cut over it
 *   data 1        rank 3     rank 4     rank 5
 *                a data group: ranks 2 and 5 have the same shards, and other rows of the batch
 * </pre>
 *
 * <p>The last axis is the fastest: its neighbours are neighbouring ranks, which are those that are
 * best connected.
 */
public final class DeviceMesh {

    /** The axis over which the batch is cut. */
    public static final String DATA = "data";

    /** The axis over which tensor-parallel layers are cut. */
    public static final String TENSOR = "tensor";

    /** The axes over which something is sharded. */
    public static final List<String> AXES = List.of(DATA, TENSOR);

    private static final Pattern TWO_SIZES = Pattern.compile("\\s*(\\d+)\\s*[xX]\\s*(\\d+)\\s*");

    private final List<String> names;
    private final List<Integer> sizes;
    private final boolean overlaid;
    private final int ranks;

    private DeviceMesh(List<String> names, List<Integer> sizes, boolean overlaid) {
        this.names = List.copyOf(names);
        this.sizes = List.copyOf(sizes);
        this.overlaid = overlaid;
        ranks = overlaid ? sizes.get(0) : product(names, sizes);
    }

    private static int product(List<String> names, List<Integer> sizes) {
        try {
            return sizes.stream().reduce(1, Math::multiplyExact);
        } catch (ArithmeticException e) {
            throw new IllegalArgumentException(
                    "The mesh " + describe(names, sizes) + " has more than 2147483647 ranks", e);
        }
    }

    /**
     * Creates a mesh of two axes.
     *
     * @param first the name of the first axis
     * @param firstSize the number of ranks along it, 1 or more
     * @param second the name of the second axis, the faster one
     * @param secondSize the number of ranks along it, 1 or more
     * @return the mesh
     * @throws IllegalArgumentException if a size is less than 1, or the names are the same
     */
    public static DeviceMesh of(String first, int firstSize, String second, int secondSize) {
        return builder().addAxis(first, firstSize).addAxis(second, secondSize).build();
    }

    /**
     * Creates the mesh that a mode stands for: {@code TENSOR} has the axis tensor, {@code DATA} the
     * axis data, and {@code MIXED} both, over the same ranks.
     *
     * @param mode the mode
     * @param ranks the number of ranks, 1 or more
     * @return the mesh
     */
    public static DeviceMesh of(ParallelMode mode, int ranks) {
        switch (mode) {
            case TENSOR:
                return builder().addAxis(TENSOR, ranks).build();
            case DATA:
                return builder().addAxis(DATA, ranks).build();
            default:
                of(DATA, ranks, TENSOR, 1); // checks the size
                return new DeviceMesh(List.of(DATA, TENSOR), List.of(ranks, ranks), true);
        }
    }

    /**
     * Reads a mesh as it is written on a command line.
     *
     * @param text the sizes of the axes data and tensor, such as {@code 2x3}
     * @return the mesh
     * @throws IllegalArgumentException if it is not written so
     */
    public static DeviceMesh parse(String text) {
        Matcher matcher = TWO_SIZES.matcher(String.valueOf(text));
        Errors.check(
                matcher.matches(),
                "A mesh is written as the sizes of its axes data and tensor, such as 2x3, not '%s'",
                text);
        try {
            return of(
                    DATA,
                    Integer.parseInt(matcher.group(1)),
                    TENSOR,
                    Integer.parseInt(matcher.group(2)));
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException("The mesh " + text + " has too many ranks", e);
        }
    }

    /**
     * Returns the names of the axes, in their order.
     *
     * @return the names
     */
    public List<String> getNames() {
        return names;
    }

    /**
     * Returns the number of ranks.
     *
     * @return the product of the sizes; of axes that are overlaid, the size of each
     */
    public int getRanks() {
        return ranks;
    }

    /**
     * Returns the number of ranks along an axis.
     *
     * @param axis the name of the axis
     * @return the size
     * @throws IllegalArgumentException if there is no such axis
     */
    public int getSize(String axis) {
        return sizes.get(indexOf(axis));
    }

    /**
     * Returns whether something is cut over an axis.
     *
     * @param axis the name of the axis
     * @return whether the mesh has it, with more than one rank
     */
    public boolean isCut(String axis) {
        return names.contains(axis) && getSize(axis) > 1;
    }

    /**
     * Returns whether all axes have the same ranks, as in {@link ParallelMode#MIXED}: what is cut
     * over one of them has to be gathered before something can be cut over another.
     *
     * @return whether they do
     */
    public boolean isOverlaid() {
        return overlaid;
    }

    /**
     * Returns the place of a rank on an axis.
     *
     * @param rank the rank
     * @param axis the name of the axis
     * @return its coordinate, from 0
     * @throws IllegalArgumentException if there is no such axis or rank
     */
    public int getCoordinate(int rank, String axis) {
        int index = indexOf(axis);
        if (rank < 0 || rank >= ranks) {
            throw new IllegalArgumentException(
                    "The ranks of the mesh " + this + " are 0 to " + (ranks - 1) + ", not " + rank);
        }
        return overlaid ? rank : rank / stride(index) % sizes.get(index);
    }

    /**
     * Returns the first rank of a rank's group along an axis: the one with the coordinate 0.
     *
     * @param rank the rank
     * @param axis the name of the axis
     * @return the rank whose coordinates on the other axes are the same
     */
    public int getFirstRank(int rank, String axis) {
        int coordinate = getCoordinate(rank, axis);
        return overlaid ? 0 : rank - coordinate * stride(indexOf(axis));
    }

    /**
     * Returns which of the replicas of a shard a rank has: what is cut over the axis tensor is the
     * same for all ranks along the axis data.
     *
     * @param rank the rank
     * @return the first rank that has the same shards, maybe the rank itself
     */
    public int getFirstReplica(int rank) {
        return overlaid || !names.contains(DATA) ? rank : getFirstRank(rank, DATA);
    }

    private int stride(int index) {
        return sizes.subList(index + 1, sizes.size()).stream().reduce(1, (a, b) -> a * b);
    }

    private int indexOf(String axis) {
        int index = names.indexOf(axis);
        if (index < 0) {
            throw new IllegalArgumentException(
                    "The mesh "
                            + this
                            + " has no axis '"
                            + axis
                            + "': its axes are "
                            + String.join(", ", names));
        }
        return index;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return overlaid
                ? String.join(" and ", names) + " over the same " + ranks
                : describe(names, sizes);
    }

    private static String describe(List<String> names, List<Integer> sizes) {
        StringJoiner text = new StringJoiner(" x ");
        for (int i = 0; i < names.size(); i++) {
            text.add(names.get(i) + " " + sizes.get(i));
        }
        return text.toString();
    }

    /**
     * Creates a builder to build a {@code DeviceMesh}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link DeviceMesh}. */
    public static final class Builder {

        private final List<String> names = new ArrayList<>();
        private final List<Integer> sizes = new ArrayList<>();

        private Builder() {}

        /**
         * Adds an axis, which is faster than those before.
         *
         * @param name the name
         * @param size the number of ranks along it, 1 or more
         * @return this builder
         * @throws IllegalArgumentException if the size is less than 1, or there is such an axis
         */
        public Builder addAxis(String name, int size) {
            if (names.contains(name)) {
                throw new IllegalArgumentException(
                        "The axis '" + name + "' was named twice: each axis of a mesh has a name");
            }
            Errors.check(
                    size >= 1, "The axis '%s' of a mesh needs 1 rank or more, not %s", name, size);
            names.add(name);
            sizes.add(size);
            return this;
        }

        /**
         * Builds the mesh.
         *
         * @return the mesh
         * @throws IllegalArgumentException if it has no axis
         */
        public DeviceMesh build() {
            Errors.check(
                    !names.isEmpty(),
                    "A mesh needs an axis: addAxis(\"data\", 2).addAxis(\"tensor\", 3)");
            return new DeviceMesh(names, sizes, false);
        }
    }
}
