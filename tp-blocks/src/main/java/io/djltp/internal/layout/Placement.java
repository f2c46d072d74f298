package io.djltp.internal.layout;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.layout.Region.Rows;
import io.djltp.internal.layout.Region.Tokens;

import org.jspecify.annotations.Nullable;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Objects;
import java.util.Set;

/**
 * How an array of a pass is placed over the ranks: which part of the rows, tokens and features this
 * rank has, and along which axis of the array.
 *
 * @param region the placement along the axes of the mesh
 * @param layout how the features are sharded, or {@code null} if they are whole or if a block of
 *     this library has taken the shard and answers for what it computes of it
 * @param features where the sharded features are in the array, or {@code null}
 * @param tokens how the tokens are sharded, or {@code null}
 * @param tokensAt where the rank's tokens are in the array, or {@code null}
 * @param rows where the rank's rows of the batch are in the array, or {@code null} if the batch is
 *     not sharded or if that is not known
 * @param reordered the operation that has put the rank's rows in another order, or {@code null}
 * @param layer the layer that has sharded the features, for errors
 * @param behind whether a gradient flows through the array to another one that a layer has placed
 * @param uses the parameters that were used for the array since, or {@code null}
 * @param parameters the parameters of which alone the array is made, none for a constant; {@code
 *     null} if it depends on the batch
 */
record Placement(
        Region region,
        @Nullable ShardedLayout layout,
        @Nullable AxisPart features,
        @Nullable TokenCut tokens,
        @Nullable AxisPart tokensAt,
        @Nullable AxisPart rows,
        @Nullable String reordered,
        @Nullable String layer,
        boolean behind,
        @Nullable Uses uses,
        @Nullable Set<Parameter> parameters) {

    static final Placement CONSTANT = ofParameters(Set.of(), false);

    /** Returns the placement of what is made of parameters, or of nothing. */
    static Placement ofParameters(Set<Parameter> parameters, boolean sharded) {
        Region region = sharded ? Region.WHOLE.with(Features.SHARD) : Region.WHOLE;
        return new Placement(
                region, null, null, null, null, null, null, null, false, null, parameters);
    }

    /** Returns the placement of a rank's part of a parameter. */
    static Placement ofShard(Set<Parameter> parameters, Cut cut, int axis, String name) {
        return ofParameters(parameters, true)
                .with(
                        Region.WHOLE.with(Features.SHARD),
                        new ShardedLayout(cut),
                        AxisPart.of(axis, cut.getLength()),
                        name);
    }

    /** Returns the same placement of what is made of other parameters. */
    Placement of(Set<Parameter> others) {
        return new Placement(
                region, layout, features, tokens, tokensAt, rows, reordered, layer, false, null,
                others);
    }

    /** Returns the placement of rows and tokens, with features that are sharded like others. */
    Placement shardedLike(Placement other) {
        return other.isOfBatch()
                ? other
                : with(region.with(Features.SHARD), other.layout, other.features, other.layer);
    }

    /** Returns the placement of an input of the pass. */
    static Placement ofBatch(Region region, Shape shape) {
        AxisPart rows =
                region.isRowsCut() && shape.dimension() > 0 ? AxisPart.of(0, shape.get(0)) : null;
        return new Placement(region, null, null, null, null, rows, null, null, false, null, null);
    }

    /** Returns whether the rank's rows are in the reverse order. */
    boolean isFlipped() {
        return "flip".equals(reordered);
    }

    boolean isOfBatch() {
        return parameters == null;
    }

    /** Returns whether the array stands for logits that are never computed. */
    boolean isHead() {
        return layout != null && layout.head() != null;
    }

    /** Returns whether rules say which operations the array may be used in. */
    boolean isFollowed() {
        return features != null || tokensAt != null || isHead();
    }

    /** Returns the placement of another array, whose features are placed as given. */
    Placement with(Features other) {
        return with(region.with(other), null, null, null);
    }

    private Placement with(
            Region other,
            @Nullable ShardedLayout cut,
            @Nullable AxisPart at,
            @Nullable String name) {
        return new Placement(
                other, cut, at, tokens, tokensAt, rows, reordered, name, behind, uses, parameters);
    }

    /** Returns the placement of a shard whose features are the last axis. */
    Placement withFeatures(ShardedLayout cut, Shape shape, String name) {
        AxisPart at =
                cut.head() != null
                        ? null
                        : AxisPart.of(shape.dimension() - 1, cut.cut().getLength());
        return with(region.with(Features.SHARD), cut, at, name);
    }

    /** Returns the placement of a shard that a block of this library has taken. */
    Placement taken() {
        return features == null ? this : with(region, null, null, null);
    }

    Placement withTokens(@Nullable TokenCut cut, @Nullable Shape shape) {
        Region other =
                region.with(Features.REPLICATED).with(cut == null ? Tokens.WHOLE : Tokens.CUT);
        AxisPart at =
                cut == null || shape == null
                        ? null
                        : AxisPart.of(cut.axis(), shape.get(cut.axis()));
        return new Placement(
                other, null, null, cut, at, rows, reordered, layer, behind, uses, parameters);
    }

    /** Returns the placement of an array of all rows, or of so many of the rank's. */
    Placement withRows(Rows other, Shape shape, long count) {
        boolean known = count > 0 && shape.get(0) % count == 0; // a row may have become several
        long each = known ? shape.get(0) / count : 1;
        AxisPart at = other == Rows.CUT ? new AxisPart(0, 1, shape.get(0) / each, each, 1) : null;
        return new Placement(
                region.with(other),
                layout,
                features,
                tokens,
                tokensAt,
                at,
                null,
                layer,
                behind,
                uses,
                parameters);
    }

    Placement at(
            @Nullable AxisPart featuresAt,
            @Nullable AxisPart tokenAxis,
            @Nullable AxisPart rowAxis) {
        return at(featuresAt, tokenAxis, rowAxis, reordered);
    }

    Placement at(
            @Nullable AxisPart featuresAt,
            @Nullable AxisPart tokenAxis,
            @Nullable AxisPart rowAxis,
            @Nullable String order) {
        boolean same =
                Objects.equals(featuresAt, features)
                        && Objects.equals(tokenAxis, tokensAt)
                        && Objects.equals(rowAxis, rows)
                        && Objects.equals(order, reordered);
        if (same) {
            return this;
        }
        return new Placement(
                region,
                layout,
                featuresAt,
                tokens,
                tokenAxis,
                rowAxis,
                order,
                layer,
                behind,
                uses,
                parameters);
    }

    Placement withLayout(Cut cut, AxisPart at) {
        return with(region, new ShardedLayout(cut), at, layer);
    }

    /** Returns the placement of what was computed with parameters, and depends on the batch. */
    Placement computed(boolean flows, @Nullable Uses used) {
        return isOfBatch() && flows == behind && used == uses
                ? this
                : new Placement(
                        region, layout, features, tokens, tokensAt, rows, reordered, layer, flows,
                        used, null);
    }

    /** Returns the parameters that the array is made of, where it does not depend on the batch. */
    Set<Parameter> made() {
        if (parameters == null) {
            throw new IllegalStateException("The array depends on the batch");
        }
        return parameters;
    }

    /** Returns how the features are sharded, where they are. */
    Cut cut() {
        if (layout == null) {
            throw new IllegalStateException("The features are not sharded");
        }
        return layout.cut();
    }

    /** Returns where the sharded features are, where there are some. */
    AxisPart part() {
        if (features == null) {
            throw new IllegalStateException("No axis has sharded features");
        }
        return features;
    }

    /** Returns the shape of the whole along the features, which is what blocks see. */
    Shape whole(Shape local) {
        if (features == null && !isHead()) {
            return local;
        }
        return features == null || isHead()
                ? with(local, local.dimension() - 1, cut().getLength())
                : with(local, features.axis(), features.length());
    }

    /** Returns the shape of this rank's part, of a whole that has the features at a place. */
    Shape local(Shape whole, AxisPart at, long ownFeatures) {
        return with(whole, at.axis(), at.outer() * (ownFeatures / at.unit()) * at.inner());
    }

    /** Returns how many features this rank has of an array. */
    long ownFeatures(Shape local) {
        AxisPart at = part();
        long others = at.outer() * at.inner();
        return others == 0 ? 0 : local.get(at.axis()) / others * at.unit();
    }

    private static Shape with(Shape shape, int axis, long length) {
        long[] lengths = shape.getShape().clone();
        lengths[axis] = length;
        return new Shape(lengths);
    }

    /** Returns whether features are placed alike over the ranks in two arrays. */
    boolean hasSameShares(Cut two) {
        Cut one = cut();
        boolean replicated = !one.isPartition() || !two.isPartition();
        if (replicated && one.getLength() != two.getLength()) {
            return true; // replicas, such as keys that several ranks need, have shares of their own
        }
        boolean same = one.getRanks() == two.getRanks();
        for (int rank = 0; same && rank < one.getRanks(); rank++) {
            List<ShardRange> ranges = one.getRanges(rank);
            List<ShardRange> theirs = two.getRanges(rank);
            same = ranges.size() == theirs.size();
            for (int i = 0; same && i < ranges.size(); i++) {
                same =
                        ranges.get(i).start() * two.getLength()
                                        == theirs.get(i).start() * one.getLength()
                                && ranges.get(i).length() * two.getLength()
                                        == theirs.get(i).length() * one.getLength();
            }
        }
        return same;
    }

    /** Returns whether each rank has several ranges of features, which may be taken apart. */
    boolean isStacked() {
        for (int rank = 0; rank < cut().getRanks(); rank++) {
            if (cut().getRanges(rank).size() > 1) {
                return true;
            }
        }
        return false;
    }

    /**
     * The elements of an axis by which an array is divided over ranks: an axis, or the middle part
     * of one that a reshape has made of several.
     *
     * <p>The axis has {@code outer * count * inner} elements. Features may be divided to groups,
     * such as heads: {@code count} is the number of groups then, and a rank has whole groups.
     *
     * @param axis the axis
     * @param outer the elements of what comes before, on that axis
     * @param count the number of features, or of groups of features, or of rows or tokens
     * @param inner the elements of what follows, on that axis
     * @param unit the features of a group
     */
    record AxisPart(int axis, long outer, long count, long inner, long unit) {

        static AxisPart of(int axis, long count) {
            return new AxisPart(axis, 1, count, 1, 1);
        }

        AxisPart on(int other) {
            return other == axis ? this : new AxisPart(other, outer, count, inner, unit);
        }

        long length() {
            return outer * count * inner;
        }

        /** Returns whether the features, or their groups in their order, are the last axis. */
        boolean isLast(int dimensions) {
            return axis == dimensions - 1 && outer == 1;
        }

        /** Returns whether features are placed alike: those of queries, and of keys they share. */
        boolean isAlike(AxisPart other) {
            return axis == other.axis
                    && outer == other.outer
                    && (count % other.count == 0 || other.count % count == 0);
        }

        /**
         * Returns where the part is in an array of another shape with the same elements in the same
         * order.
         *
         * @return the place, or {@code null} if the part has no axis of its own there
         */
        @Nullable AxisPart reshaped(long[] from, long[] to) {
            if (count == 0) {
                return null;
            }
            long before = outer * product(from, axis);
            AxisPart first = null;
            for (int i = 0; i < to.length; i++) {
                long passed = product(to, i);
                long left = passed == 0 ? 0 : before / passed; // of what comes before, on axis i
                if (left == 0 || before % passed != 0 || to[i] % left != 0) {
                    continue;
                }
                AxisPart found = null;
                long rest = to[i] / left;
                if (rest % count == 0) {
                    found = new AxisPart(i, left, count, rest / count, unit);
                } else if (count % rest == 0 && rest > 1) {
                    found = new AxisPart(i, left, rest, 1, unit * (count / rest));
                }
                if (found != null && (count > 1 || left == 1)) {
                    boolean single = count == 1 && i < axis && axis < to.length && to[axis] == 1;
                    if (!single || product(to, axis) != before) {
                        return found;
                    }
                }
                first = first == null ? found : first;
            }
            return first;
        }

        private static long product(long[] shape, int axes) {
            long product = 1;
            for (int i = 0; i < axes; i++) {
                product *= shape[i];
            }
            return product;
        }
    }

    /**
     * The parameters of which an array was computed since a layer has placed what it was computed
     * of. Whoever uses the array next says with which placement that was: on it depends whether
     * gradients of the parameters are summands.
     */
    static final class Uses {

        private final Set<Parameter> parameters;
        private final List<Uses> before;
        private int settled; // a bit for each placement

        Uses(Set<Parameter> parameters, List<Uses> before) {
            this.parameters = parameters;
            this.before = before;
        }

        /** Returns the parameters of two arrays. */
        static @Nullable Uses join(@Nullable Uses one, @Nullable Uses other) {
            if (one == null || one == other) {
                return other;
            }
            return other == null ? one : new Uses(Set.of(), List.of(one, other));
        }

        /** Notes that the parameters were used with a placement. */
        void settle(Region region, ForwardPass pass) {
            Deque<Uses> open = new ArrayDeque<>(List.of(this));
            int bit = 1 << region.index();
            while (!open.isEmpty()) {
                Uses at = open.poll();
                if ((at.settled & bit) == 0) {
                    at.settled |= bit;
                    at.parameters.forEach(each -> pass.use(each, region));
                    open.addAll(at.before);
                }
            }
        }
    }
}
