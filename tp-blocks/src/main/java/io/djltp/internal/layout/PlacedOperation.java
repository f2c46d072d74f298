package io.djltp.internal.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.ShardRange;
import io.djltp.internal.layout.Placement.AxisPart;
import io.djltp.internal.torch.TorchOperations;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * The rule by which an operation passes on the placement of its operands, or throws if it would
 * compute something else of each rank's part than of the whole.
 *
 * <p>Of the features and tokens that ranks share out, an operation must not compute one from
 * others; an operation that is not known may not get them. Of the rows of the batch only their
 * order is followed. Gradients that the result gives to parameters are summed over the ranks by the
 * placement with which the parameters were used, which is noted here.
 */
final class PlacedOperation {

    private enum Kind {
        ELEMENTWISE,
        REDUCE,
        ALONG,
        PERMUTE,
        RESHAPE,
        BROADCAST,
        REPEAT,
        CONCAT,
        STACK,
        SPLIT,
        INDEX,
        PRODUCT,
        LINEAR,
        LOOK_UP,
        LAST_AXES,
        CHANNELS,
        UNKNOWN
    }

    private static final Map<String, Kind> KINDS = new HashMap<>();

    static {
        add(
                Kind.ELEMENTWISE,
                "add sub mul div mod pow maximum minimum eq neq gt gte lt lte xlogy atan2 addi subi"
                        + " muli divi modi powi sign signi neg negi abs square sqrt cbrt floor ceil"
                        + " round trunc exp gammaln log log10 log2 sin cos tan asin acos atan sinh"
                        + " cosh tanh asinh acosh atanh toDegrees toRadians logicalAnd logicalOr"
                        + " logicalXor logicalNot isInfinite isNaN clip erf erfinv toDense toType"
                        + " toDevice stopGradient scaleGradient duplicate zerosLike onesLike like"
                        + " rdiv rdivi rsub rsubi rmod rmodi rpow rpowi relu sigmoid softPlus"
                        + " softSign leakyRelu elu selu gelu swish mish where dropout real conj");
        add(
                Kind.REDUCE,
                "sum mean max min prod norm all any none countNonzero argMax argMin median");
        add(Kind.REDUCE, "percentile trace");
        add(
                Kind.ALONG,
                "softmax logSoftmax cumSum cumProd sort argSort flip topK normalize gather scatter");
        add(Kind.PERMUTE, "transpose swapAxes");
        add(Kind.RESHAPE, "reshape flatten squeeze expandDims");
        add(Kind.BROADCAST, "broadcast");
        add(Kind.REPEAT, "repeat tile");
        add(Kind.CONCAT, "concat");
        add(Kind.STACK, "stack");
        add(Kind.SPLIT, "split");
        add(Kind.INDEX, "get set");
        add(Kind.PRODUCT, "matMul batchMatMul dot batchDot");
        add(Kind.LINEAR, "linear");
        add(Kind.LOOK_UP, "embedding oneHot");
        add(
                Kind.LAST_AXES,
                "layerNorm maxPool avgPool lpPool globalMaxPool globalAvgPool globalLpPool");
        add(Kind.CHANNELS, "convolution deconvolution batchNorm prelu");
    }

    /** Does nothing, once the class is initialized. */
    static void load() {}

    private static void add(Kind kind, String names) {
        Arrays.stream(names.split(" ")).forEach(name -> KINDS.put(name, kind));
    }

    /** Reductions whose first argument is a number, and no axis. */
    private static final Set<String> WITH_NUMBER = Set.of("norm", "trace", "percentile");

    private static final Set<String> WITHOUT_GRADIENT =
            Set.of(
                    ("stopGradient zerosLike onesLike like eq neq gt gte lt lte logicalAnd"
                                    + " logicalOr logicalXor logicalNot isNaN isInfinite argMax argMin"
                                    + " argSort all any none countNonzero oneHot")
                            .split(" "));

    /** An array that an operation gets, and where the engine is given it. */
    static final class Operand {

        private final Placement placement;
        private final Object @Nullable [] holder; // or null: it is the array whose method is called
        private final int index;
        private NDArray array;
        private @Nullable NDList list;

        Operand(Placement placement, NDArray array, Object @Nullable [] holder, int index) {
            this.placement = placement;
            this.array = array;
            this.holder = holder;
            this.index = index;
        }

        /** Says that the array is an element of a list, too. */
        Operand in(NDList elements) {
            list = elements;
            return this;
        }

        Placement placement() {
            return placement;
        }

        NDArray array() {
            return array;
        }

        private Shape shape() {
            return placement.whole(array.getShape());
        }

        private void set(NDArray part) {
            array = part;
            if (list != null) {
                list.set(index, part);
            } else if (holder != null) {
                holder[index] = part;
            }
        }
    }

    private final String name;
    private final Kind kind;
    private final ForwardPass pass;
    private final List<Operand> operands;
    private final Object[] args;
    private @Nullable List<Placement> parts; // of a split
    private int dimensions; // of the result
    private int @Nullable [] axes; // over which it computes, or to which it moves axes
    private boolean kept; // axes of length 1
    private long @Nullable [] target; // of a reshape
    private @Nullable PlacedIndex index; // of an index, or a split

    PlacedOperation(String name, ForwardPass pass, List<Operand> operands, Object[] args) {
        this.name = name;
        this.pass = pass;
        this.operands = operands;
        this.args = args;
        Kind known = KINDS.getOrDefault(name, Kind.UNKNOWN);
        kind = known == Kind.CONCAT && operands.size() == 1 ? Kind.ELEMENTWISE : known;
    }

    /** Returns the array whose method is called, or the part of it that the result is made of. */
    NDArray first() {
        return operands.get(0).array;
    }

    /** Returns the elements of this rank's part that are asked for, or null for the caller's. */
    @Nullable NDIndex localIndex() {
        return index != null && "get".equals(name) ? index.local() : null;
    }

    @Nullable List<Placement> parts() {
        return parts;
    }

    /** Returns the placement of an array of the result, such as the last state of an LSTM. */
    Placement ofElement(int element, Placement next) {
        if (parts != null) {
            return parts.get(element);
        }
        return element == 0 || !isRecurrent() || next.rows() == null
                ? next
                : next.at(next.features(), next.tokensAt(), next.rows().on(1));
    }

    private boolean isRecurrent() {
        return switch (name) {
            case "rnn", "gru", "lstm" -> true;
            default -> false;
        };
    }

    boolean draws() {
        return kind == Kind.UNKNOWN || "dropout".equals(name); // such as an LSTM
    }

    boolean isInPlace() {
        return "set".equals(name)
                || "setScalar".equals(name)
                || "intern".equals(name)
                || kind == Kind.ELEMENTWISE && name.endsWith("i") && KINDS.containsKey(name);
    }

    /** Returns whether the result may share the memory of the array whose method is called. */
    boolean isView() {
        return switch (kind) {
            case RESHAPE, PERMUTE, BROADCAST, SPLIT -> true;
            case INDEX -> "get".equals(name);
            default ->
                    switch (name) {
                        case "stopGradient" -> true;
                        case "toType", "toDevice" -> !(boolean) args[1]; // else a copy
                        default -> false;
                    };
        };
    }

    /** Returns the placement of the result, and notes the parameters that were used for it. */
    Placement placement() {
        Operand base = null;
        Operand followed = null;
        Operand taken = null;
        boolean flows = false;
        for (Operand operand : operands) {
            Placement at = operand.placement;
            flows |= at.behind();
            if (at.isFollowed() && followed == null) {
                followed = operand;
            }
            if (at.isOfBatch()) {
                if (base == null) {
                    base = operand;
                } else {
                    checkPlaces(base, operand);
                }
                if (at.region().isShard() && !at.isFollowed()) {
                    taken = operand;
                }
            }
        }
        if (base == null) { // made of parameters alone
            Placement made = ofParameters();
            return followed == null ? made : follow(followed, followed).of(made.made());
        }
        boolean stops = WITHOUT_GRADIENT.contains(name) || isToIntegers();
        if ("batchNorm".equals(name) && (boolean) args[args.length - 1]) {
            pass.checkBatchNorm(operands.get(0).placement, operands.get(0).array.getShape());
        }
        Placement next;
        if (taken != null) { // by a block that answers for it
            next = taken.placement;
        } else if (followed != null) {
            next = follow(followed, base);
        } else {
            next = base.placement;
            boolean cutParameter = false;
            for (Operand operand : operands) {
                cutParameter |= operand.placement.region().isShard();
            }
            next = cutParameter ? next.with(Region.Features.SHARD) : next;
            if (next.rows() != null) {
                next = withRows(next);
            }
        }
        if (stops) {
            return next.computed(false, null);
        }
        Placement.Uses uses = uses();
        if (uses != null && next.region().isShard()) { // whatever follows, it was with a shard
            uses.settle(next.region(), pass);
            uses = null;
        }
        return next.computed(flows, uses);
    }

    private boolean isToIntegers() {
        return "toType".equals(name) && !((DataType) args[0]).isFloating();
    }

    private Placement ofParameters() {
        Set<Parameter> all = operands.get(0).placement.made();
        boolean sharded = operands.get(0).placement.region().isShard();
        for (int i = 1; i < operands.size(); i++) {
            Set<Parameter> more = operands.get(i).placement.made();
            sharded |= operands.get(i).placement.region().isShard();
            all = all.containsAll(more) ? all : union(all, more);
        }
        return all.isEmpty() && !sharded
                ? Placement.CONSTANT
                : Placement.ofParameters(all, sharded);
    }

    /** Returns the parameters that were used for the operands, and by the operation. */
    private Placement.@Nullable Uses uses() {
        Placement.Uses first = null;
        List<Placement.Uses> more = null;
        Set<Parameter> used = Set.of();
        for (Operand operand : operands) {
            Placement at = operand.placement;
            Set<Parameter> own = at.isOfBatch() ? Set.of() : at.made();
            if (!own.isEmpty()) {
                used = used.isEmpty() ? own : union(used, own);
            }
            if (at.uses() != null && first == null) {
                first = at.uses();
            } else if (at.uses() != null && at.uses() != first) {
                more = more == null ? new ArrayList<>(List.of(first)) : more;
                more.add(at.uses());
            }
        }
        if (used.isEmpty() && more == null) {
            return first;
        }
        List<Placement.Uses> before = first == null ? List.of() : List.of(first);
        return new Placement.Uses(used, more == null ? before : more);
    }

    private static Set<Parameter> union(Set<Parameter> one, Set<Parameter> other) {
        Set<Parameter> all = new HashSet<>(one);
        all.addAll(other);
        return all;
    }

    /** Arrays of the batch can be put together if ranks have the same part of it. */
    private void checkPlaces(Operand one, Operand other) {
        Placement a = one.placement;
        Placement b = other.placement;
        boolean same =
                a.region().rows() == b.region().rows()
                        && a.region().tokens() == b.region().tokens()
                        && Objects.equals(a.tokens(), b.tokens());
        if (!same) {
            throw PlacementErrors.mixed(name, a, one.array.getShape(), b, other.array.getShape());
        }
    }

    /** Follows features or tokens that are sharded. */
    private Placement follow(Operand start, Operand base) {
        Placement at = start.placement;
        if (at.isHead() || !prepare(true)) {
            throw mixes(start);
        }
        AxisPart features = null;
        Operand sharded = null;
        AxisPart tokens = null;
        for (int i = 0; i < operands.size(); i++) {
            Operand operand = operands.get(i);
            Placement own = operand.placement;
            if (own.isHead()) {
                throw mixes(operand);
            }
            if (own.features() != null) {
                AxisPart moved = move(own.features(), i, operand);
                if (moved == null && kind == Kind.SPLIT) {
                    parts = new PlacedIndex(name, args, pass).split(operand);
                    if (parts != null) {
                        return own;
                    }
                }
                Placement part =
                        kind == Kind.INDEX ? prepared(index).stackedPart(operand, moved) : null;
                if (part != null) {
                    return "set".equals(name) ? own : part;
                }
                if (moved == null || !pass.hasWholeGroups(own.cut(), moved.unit())) {
                    throw mixes(operand);
                }
                if (sharded != null && features != null) {
                    checkTogether(sharded, features, operand, moved);
                }
                boolean wider = features == null || moved.unit() < features.unit();
                sharded = wider ? operand : sharded;
                features = wider ? moved : features;
            }
            if (own.tokensAt() != null) {
                tokens = move(own.tokensAt(), i, operand);
                if (tokens == null) {
                    throw mixes(operand);
                }
            } else if (start.placement.tokensAt() != null && looksUp()) {
                throw mixes(start);
            }
        }
        if (sharded != null && features != null) {
            for (int i = 0; i < operands.size(); i++) {
                if (operands.get(i).placement.features() == null) {
                    narrow(operands.get(i), i, sharded, features);
                }
            }
            localArguments(sharded, features);
        }
        Placement next = base.placement.shardedLike((sharded == null ? start : sharded).placement);
        AxisPart rows = null;
        String order = next.reordered();
        if (next.region().isRowsCut()) {
            Placement moved = withRows(next.at(null, null, rowsOfAny()));
            rows = moved.rows();
            order = moved.reordered();
        }
        return next.at(features, tokens, rows, order);
    }

    private @Nullable AxisPart rowsOfAny() {
        for (Operand operand : operands) {
            if (operand.placement.rows() != null) {
                return operand.placement.rows();
            }
        }
        return null;
    }

    private boolean looksUp() {
        return "gather".equals(name) || "scatter".equals(name);
    }

    private IllegalArgumentException mixes(Operand operand) {
        String what = axes != null && kind == Kind.ALONG ? name + " over axis " + axes[0] : name;
        return PlacementErrors.mixes(what, operand.placement, operand.array.getShape());
    }

    private void checkTogether(Operand one, AxisPart at, Operand other, AxisPart otherAt) {
        if (!at.isAlike(otherAt)) {
            throw mixes(other);
        }
        long own = at.outer() * at.inner() * (ownFeatures(one) / at.unit());
        long others = otherAt.outer() * otherAt.inner() * (ownFeatures(other) / otherAt.unit());
        boolean broadcast = at.length() == 1 || otherAt.length() == 1;
        if (!broadcast && at.length() == otherAt.length() && own != others) {
            throw mixes(other); // replicas that a rank shares in part
        }
        if (!one.placement.hasSameShares(other.placement.cut())) {
            throw PlacementErrors.otherCuts(one.placement, other.placement);
        }
    }

    private static long ownFeatures(Operand operand) {
        return operand.placement.ownFeatures(operand.array.getShape());
    }

    /** Follows the rows of the batch, of which only the order is of interest. */
    private Placement withRows(Placement at) {
        if (!prepare(false)) {
            AxisPart unknown = at.rows() == null ? null : rowsOfUnknown(at.rows());
            return at.at(at.features(), at.tokensAt(), unknown);
        }
        AxisPart rows = null;
        String order = null;
        Placement first = null; // whose rows those are
        for (int i = 0; i < operands.size(); i++) {
            Placement own = operands.get(i).placement;
            int dimensionsOfIt = operands.get(i).array.getShape().dimension();
            if (own.rows() == null || own.rows().axis() >= dimensionsOfIt) {
                continue; // such as a scalar that a layer has made of rows
            }
            AxisPart moved = move(own.rows(), i, operands.get(i));
            moved = moved != null && moved.unit() > 1 ? null : moved; // they are divided
            String ordered = own.reordered();
            if (moved == null && isAlong(own.rows())) {
                moved = reordered(own.rows());
                boolean back = "flip".equals(name) && name.equals(ordered);
                ordered = moved == null ? ordered : back ? null : name;
            }
            if (moved == null) {
                checkMixesNoRows(i);
            } else if (rows == null) {
                rows = moved;
                order = ordered;
                first = own;
            } else if (joinsOperands()) {
                Shape shape = operands.get(i).array.getShape();
                if (rows.axis() != moved.axis()) { // each row meets those of its rank only
                    throw PlacementErrors.mixesRows(name, shape);
                }
                if (first != null && first.isFlipped() != own.isFlipped()) {
                    throw PlacementErrors.rowOrder(first.isFlipped() ? first : own, shape);
                }
            }
        }
        return at.at(at.features(), at.tokensAt(), rows, order);
    }

    /** Follows rows where {@link #prepare} does not know what the operation does. */
    private @Nullable AxisPart rowsOfUnknown(AxisPart rows) {
        if (kind == Kind.PRODUCT) { // of a vector
            for (int i = 0; i < operands.size(); i++) {
                Operand operand = operands.get(i);
                AxisPart own = operand.placement.rows();
                int last = operand.array.getShape().dimension() - 1;
                if (own != null && own.axis() == (i == 0 ? last : Math.max(0, last - 1))) {
                    checkMixesNoRows(i);
                }
            }
            boolean kept = rows.equals(operands.get(0).placement.rows());
            return kept ? rows : null;
        }
        return isRecurrent() && rows.axis() < 2 ? rows : null; // [rows, tokens, ..], or turned
    }

    /** A rank's rows alone must not be what something of all rows is computed of. */
    private void checkMixesNoRows(int operand) {
        boolean mixed =
                switch (kind) {
                    case REDUCE, PRODUCT, LINEAR, RESHAPE -> true;
                    case ALONG, LAST_AXES, CHANNELS ->
                            operand == 0; // others choose, or are weights
                    default -> false;
                };
        if (mixed && !pass.isLossOfParts()) {
            throw PlacementErrors.mixesRows(name, operands.get(operand).array.getShape());
        }
    }

    private boolean joinsOperands() {
        return switch (kind) {
            case ELEMENTWISE, PRODUCT, CONCAT, STACK -> !pass.isLossOfParts();
            default -> false;
        };
    }

    private boolean isAlong(AxisPart rows) {
        return axes != null && axes.length > 0 && axes[0] == rows.axis();
    }

    /** Returns where rows are that the operation repeats, or puts in another order, or null. */
    private @Nullable AxisPart reordered(AxisPart rows) {
        if (kind == Kind.CONCAT) { // the rows of all operands, one behind the other
            boolean alike = operands.stream().allMatch(each -> rows.equals(each.placement.rows()));
            long times = operands.size();
            return new AxisPart(
                    rows.axis(),
                    alike ? times * rows.outer() : times,
                    rows.count(),
                    rows.inner(),
                    1);
        }
        if (kind == Kind.REPEAT) { // each row, or all of them
            long times = (long) args[1];
            long outer = "tile".equals(name) ? times * rows.outer() : rows.outer();
            long inner = "tile".equals(name) ? rows.inner() : times * rows.inner();
            return new AxisPart(rows.axis(), outer, rows.count(), inner, 1);
        }
        return "flip".equals(name) ? rows : null;
    }

    /** Finds out what the operation does to axes; returns {@code false} if that is not known. */
    private boolean prepare(boolean strict) {
        int own = operands.get(0).array.getShape().dimension();
        dimensions = own;
        switch (kind) {
            case ELEMENTWISE:
                for (Operand operand : operands) {
                    dimensions = Math.max(dimensions, operand.array.getShape().dimension());
                }
                return true;
            case REDUCE:
                kept = lastBoolean();
                axes = reducedAxes(own);
                return true;
            case ALONG:
                axes = alongAxes(own);
                return axes != null;
            case PERMUTE:
                axes = permutation(own);
                return true;
            case RESHAPE:
                target = reshapeTarget(operands.get(0).shape());
                return true;
            case BROADCAST:
                long[] to = args[0] instanceof Shape shape ? shape.getShape() : (long[]) args[0];
                target = to;
                dimensions = to.length;
                return true;
            case REPEAT:
                if (args.length == 2) {
                    axes = new int[] {Math.floorMod((int) args[0], own)};
                    return true;
                }
                return !strict;
            case CONCAT:
            case SPLIT:
                axes = new int[] {axisArgument(own)};
                return true;
            case STACK:
                axes = new int[] {axisArgument(own + 1)};
                dimensions = own + 1;
                return true;
            case INDEX:
                index = new PlacedIndex(name, args, pass);
                return index.prepare(own);
            case PRODUCT:
                for (Operand operand : operands) {
                    if (operand.array.getShape().dimension() < 2) {
                        return false;
                    }
                    dimensions = Math.max(dimensions, operand.array.getShape().dimension());
                }
                return true;
            case LOOK_UP:
                dimensions = own + 1;
                return true;
            case LAST_AXES:
                return own > 1;
            case LINEAR:
            case CHANNELS:
                return true;
            default:
                return false;
        }
    }

    /** Returns where the features, tokens or rows of an operand are in the result, or null. */
    private @Nullable AxisPart move(AxisPart at, int operand, Operand given) {
        int own = given.array.getShape().dimension();
        int axis = at.axis();
        switch (kind) {
            case ELEMENTWISE:
                return at.on(axis + dimensions - own);
            case REDUCE:
                return contains(axis) ? null : at.on(kept ? axis : axis - before(axis));
            case ALONG:
            case REPEAT:
            case CONCAT:
            case SPLIT:
                return axes == null || contains(axis) ? null : at;
            case PERMUTE:
                return at.on(indexOf(axis));
            case RESHAPE:
                return at.reshaped(given.shape().getShape(), prepared(target));
            case BROADCAST:
                int aligned = axis + dimensions - own;
                return prepared(target)[aligned] == at.length() ? at.on(aligned) : null;
            case STACK:
                return at.on(prepared(axes)[0] <= axis ? axis + 1 : axis);
            case INDEX:
                return prepared(index).move(at);
            case PRODUCT:
                boolean summed = axis == own - (operand == 0 ? 1 : 2);
                return summed ? null : at.on(axis + dimensions - own);
            case LINEAR:
                return operand > 0 || axis == own - 1 ? null : at;
            case LOOK_UP:
                return operand > 0 ? null : at;
            case LAST_AXES:
                return operand > 0 || axis >= own - mixedAxes(own) ? null : at;
            case CHANNELS:
                return operand > 0 || axis > 0 ? null : at;
            default:
                return null;
        }
    }

    private int mixedAxes(int own) {
        return "layerNorm".equals(name) ? ((Shape) args[1]).dimension() : own - 2;
    }

    private boolean contains(int axis) {
        for (int each : prepared(axes)) {
            if (each == axis) {
                return true;
            }
        }
        return false;
    }

    private int before(int axis) {
        int count = 0;
        for (int each : prepared(axes)) {
            count += each < axis ? 1 : 0;
        }
        return count;
    }

    private int indexOf(int axis) {
        int[] order = prepared(axes);
        for (int i = 0; i < order.length; i++) {
            if (order[i] == axis) {
                return i;
            }
        }
        throw new IllegalArgumentException("no axis " + axis + " in " + Arrays.toString(order));
    }

    private static <T> T prepared(@Nullable T part) {
        if (part == null) {
            throw new IllegalStateException("prepare comes first");
        }
        return part;
    }

    private boolean lastBoolean() {
        return args.length > 0 && args[args.length - 1] instanceof Boolean keep && keep;
    }

    private int axisArgument(int count) {
        for (Object arg : args) {
            if (arg instanceof Integer number) {
                return Math.floorMod(number, count);
            }
        }
        return 0;
    }

    private int[] reducedAxes(int own) {
        for (Object arg : args) {
            if (arg instanceof int[] given) {
                return IntStream.of(given).map(axis -> Math.floorMod(axis, own)).toArray();
            }
            if (arg instanceof Integer axis && !WITH_NUMBER.contains(name)) {
                return new int[] {Math.floorMod(axis, own)};
            }
        }
        return IntStream.range(0, own).toArray();
    }

    private int @Nullable [] alongAxes(int own) {
        if ("flip".equals(name)) {
            return IntStream.of((int[]) args[0]).map(axis -> Math.floorMod(axis, own)).toArray();
        }
        int position = "topK".equals(name) || "gather".equals(name) ? 1 : 0;
        position = "scatter".equals(name) ? 2 : position;
        if ("normalize".equals(name)) {
            long axis = args.length > 1 ? (Long) args[1] : 1;
            return new int[] {Math.floorMod((int) axis, own)};
        }
        if (args.length > position && args[position] instanceof Integer axis) {
            return new int[] {Math.floorMod(axis, own)};
        }
        return "sort".equals(name) || "argSort".equals(name) ? new int[] {own - 1} : null;
    }

    private int[] permutation(int own) {
        int[] all = IntStream.range(0, own).toArray();
        if ("swapAxes".equals(name)) {
            int one = Math.floorMod((int) args[0], own);
            int two = Math.floorMod((int) args[1], own);
            all[one] = two;
            all[two] = one;
            return all;
        }
        int[] given = args.length == 0 ? new int[0] : (int[]) args[0];
        return args.length == 0 || given.length == 0 && own > 0
                ? IntStream.range(0, own).map(i -> own - 1 - i).toArray()
                : IntStream.of(given).map(axis -> Math.floorMod(axis, own)).toArray();
    }

    private long[] reshapeTarget(Shape from) {
        int own = from.dimension();
        switch (name) {
            case "reshape":
                long[] given = args[0] instanceof Shape shape ? shape.getShape() : (long[]) args[0];
                return resolved(given.clone(), from.size());
            case "flatten":
                int start = args.length == 0 ? 0 : Math.floorMod((int) args[0], own);
                int end = args.length == 0 ? own - 1 : Math.floorMod((int) args[1], own);
                return from.slice(0, start)
                        .add(from.slice(start, end + 1).size())
                        .addAll(from.slice(end + 1))
                        .getShape();
            case "expandDims":
                int place = Math.floorMod((int) args[0], own + 1);
                return from.slice(0, place).add(1).addAll(from.slice(place)).getShape();
            default:
                Set<Integer> away = new HashSet<>();
                if (args.length == 1 && args[0] instanceof Integer axis) {
                    away.add(Math.floorMod(axis, own));
                } else if (args.length == 1) {
                    IntStream.of((int[]) args[0]).forEach(i -> away.add(Math.floorMod(i, own)));
                }
                return IntStream.range(0, own)
                        .filter(i -> from.get(i) != 1 || args.length == 1 && !away.contains(i))
                        .mapToLong(from::get)
                        .toArray();
        }
    }

    private static long[] resolved(long[] lengths, long size) {
        long known = 1;
        int open = -1;
        for (int i = 0; i < lengths.length; i++) {
            if (lengths[i] == -1) {
                open = i;
            } else {
                known *= lengths[i];
            }
        }
        if (open >= 0) {
            lengths[open] = known == 0 ? 0 : size / known;
        }
        return lengths;
    }

    /** Gives the engine shapes of this rank's part. */
    private void localArguments(Operand sharded, AxisPart features) {
        Placement at = sharded.placement;
        if (kind == Kind.RESHAPE || kind == Kind.BROADCAST) {
            long own = at.ownFeatures(sharded.array.getShape());
            long[] local = at.local(new Shape(prepared(target)), features, own).getShape();
            if (args.length == 1 && args[0] instanceof long[]) {
                args[0] = local;
            } else if (args.length == 1 && args[0] instanceof Shape) {
                args[0] = new Shape(local);
            }
        }
    }

    /** Takes of an array that all ranks have what belongs to this rank's features. */
    private void narrow(Operand whole, int operand, Operand sharded, AxisPart features) {
        Shape shape = whole.array.getShape();
        if (whole.placement.isOfBatch() && whole.placement.behind()) {
            throw PlacementErrors.mixed(
                    name, sharded.placement, sharded.array.getShape(), whole.placement, shape);
        }
        boolean product = kind == Kind.PRODUCT && features.axis() < dimensions - 2;
        if (kind != Kind.ELEMENTWISE
                && kind != Kind.CONCAT
                && kind != Kind.STACK
                && !looksUp()
                && !product) {
            return;
        }
        int axis =
                kind == Kind.ELEMENTWISE || product
                        ? features.axis() - (dimensions - shape.dimension())
                        : sharded.placement.part().axis();
        if (looksUp() && shape.get(axis) != features.length()) {
            throw mixes(sharded); // the first of each rank's, rather than the first of all
        }
        boolean alike = axis < 0 || shape.get(axis) == 1 || shape.get(axis) != features.length();
        if (alike || whole.placement.region().isShard()) {
            return; // it is broadcast along the features, or is a shard too
        }
        NDArray all = whole.array;
        Shape open =
                shape.slice(0, axis)
                        .add(features.outer(), features.count(), features.inner())
                        .addAll(shape.slice(axis + 1));
        NDArray groups = all.reshape(open);
        NDList own = new NDList();
        for (ShardRange range : pass.ownRanges(sharded.placement.cut())) {
            long start = range.start() / features.unit();
            long end = range.end() / features.unit();
            own.add(groups.get(new NDIndex().addAllDim(axis + 1).addSliceDim(start, end)));
        }
        NDArray part = TorchOperations.concat(own, axis + 1);
        long count = part.getShape().get(axis + 1);
        Shape closed =
                shape.slice(0, axis)
                        .add(features.outer() * count * features.inner())
                        .addAll(shape.slice(axis + 1));
        whole.set(part.reshape(closed));
    }
}
