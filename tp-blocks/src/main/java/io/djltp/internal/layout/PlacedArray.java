package io.djltp.internal.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.index.dim.NDIndexBooleans;
import ai.djl.ndarray.index.dim.NDIndexElement;
import ai.djl.ndarray.index.dim.NDIndexPick;
import ai.djl.ndarray.index.dim.NDIndexTake;
import ai.djl.ndarray.internal.NDArrayEx;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.RandomDraws;

import org.jspecify.annotations.Nullable;

import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Set;

/**
 * An array of a pass that carries its {@link Placement}: a delegate of the engine's array, of its
 * {@link NDArrayEx} or of its manager.
 *
 * <p>Every operation of DJL's interfaces passes the placement on by the rules of {@link
 * PlacedOperation}, or throws where it is called. Where features are sharded, {@link
 * NDArray#getShape()} is the shape of the whole. As in PyTorch's DTensor, blocks need not know of
 * ranks for that.
 */
final class PlacedArray implements InvocationHandler {

    /** Methods that say or change something of the array, and compute nothing. */
    private static final Set<String> PLAIN =
            Set.of(
                    ("getName setName getUid getDataType getDevice getSparseFormat isSparse"
                                    + " isScalar setRequiresGradient hasGradient getGradient attach"
                                    + " tempAttach detach returnResource close isReleased toDebugString")
                            .split(" "));

    private static final Set<String> READ =
            Set.of(
                    ("toArray toByteArray toDoubleArray toFloatArray toShortArray"
                                    + " toUnsignedShortArray toIntArray toUnsignedIntArray toLongArray"
                                    + " toUint8Array toBooleanArray toStringArray getLong getDouble getFloat"
                                    + " getInt getByte getUint8 getBoolean encode contentEquals allClose")
                            .split(" "));

    /** Operations of {@link NDArrayEx} that compute with their arguments alone. */
    private static final Set<String> OF_ARGUMENTS =
            Set.of(
                    ("linear convolution deconvolution embedding prelu dropout layerNorm"
                                    + " batchNorm rnn gru lstm")
                            .split(" "));

    private static final Object[] NONE = {};
    private static final Constructor<?> ARRAY = constructor(Array.class);
    private static final Constructor<?> OPERATIONS = constructor(Operations.class);
    private static final Constructor<?> MANAGER = constructor(Manager.class);

    private final Object raw;
    private final ForwardPass pass;
    private Placement placement;
    private @Nullable NDArray owner; // of operations
    private @Nullable NDArray own; // of an array: what the pass hands out
    private boolean given; // by the caller: the ranks share its memory

    /** Does nothing, once the class and its proxies are initialized. */
    static void load() {}

    /** An array; not public, so that its proxies belong to this package. */
    interface Array extends NDArray, DelegatedArray {}

    /** The operations of an array. */
    interface Operations extends NDArrayEx {}

    /** The manager of an array. */
    interface Manager extends NDManager, DelegatedArray.Manager {}

    private PlacedArray(Object raw, Placement placement, ForwardPass pass) {
        this.raw = raw;
        this.placement = placement;
        this.pass = pass;
    }

    private static Constructor<?> constructor(Class<?> type) {
        try {
            ClassLoader loader = PlacedArray.class.getClassLoader();
            InvocationHandler none = (proxy, method, args) -> null;
            Object first = Proxy.newProxyInstance(loader, new Class<?>[] {type}, none);
            return first.getClass().getConstructor(InvocationHandler.class);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private Object proxy(Constructor<?> type) {
        try {
            return type.newInstance(this);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Returns an array that stands before another one and carries its placement. */
    static NDArray of(NDArray raw, Placement placement, ForwardPass pass) {
        return of(raw, placement, pass, false);
    }

    private static NDArray of(NDArray raw, Placement placement, ForwardPass pass, boolean given) {
        PlacedArray handler = new PlacedArray(raw, placement, pass);
        NDArray array = (NDArray) handler.proxy(ARRAY);
        handler.own = array;
        handler.given = given;
        return array;
    }

    /** Returns an array of the caller's, or a view of it, whose memory the ranks share. */
    static NDArray ofCaller(NDArray raw, Placement placement, ForwardPass pass) {
        return of(raw, placement, pass, true);
    }

    /** Returns the placement that an array carries, or {@code null}. */
    static @Nullable Placement placementOf(NDArray array) {
        PlacedArray handler = handlerOf(array);
        return handler == null ? null : handler.placement;
    }

    /** Sets the placement of an array that carries one; returns whether it does. */
    static boolean set(NDArray array, Placement placement) {
        PlacedArray handler = handlerOf(array);
        if (handler != null) {
            handler.placement = placement;
        }
        return handler != null;
    }

    private static @Nullable PlacedArray handlerOf(Object object) {
        return object instanceof Array ? (PlacedArray) Proxy.getInvocationHandler(object) : null;
    }

    @Override
    public @Nullable Object invoke(Object self, Method method, Object @Nullable [] arguments)
            throws Throwable {
        Object[] args = arguments == null ? NONE : arguments;
        String name = method.getName();
        Class<?> declaring = method.getDeclaringClass();
        if (declaring == Object.class) {
            return ofObject(self, name, args);
        }
        if (declaring == DelegatedArray.class) {
            return raw;
        }
        if (declaring == DelegatedArray.Manager.class) {
            return of((NDArray) args[0], placement.taken(), pass);
        }
        Object[] plain = unwrapped(args);
        if (raw instanceof NDManager) {
            return ofManager(self, method, args, plain);
        }
        if (raw instanceof NDArray array) {
            switch (name) {
                case "getShape":
                    return placement.whole(array.getShape());
                case "size":
                    Shape shape = placement.whole(array.getShape());
                    return plain.length == 0 ? shape.size() : shape.get((Integer) plain[0]);
                case "isEmpty":
                    return placement.whole(array.getShape()).size() == 0;
                case "getManager":
                    return new PlacedArray(array.getManager(), placement, pass).proxy(MANAGER);
                case "getNDArrayInternal":
                    PlacedArray operations =
                            new PlacedArray(array.getNDArrayInternal(), placement, pass);
                    operations.owner = (NDArray) self;
                    return operations.proxy(OPERATIONS);
                case "getResourceNDArrays":
                    return List.of((NDArray) self);
                case "shapeEquals":
                    return placement.whole(array.getShape()).equals(((NDArray) args[0]).getShape());
                case "toByteBuffer":
                    throw PlacementErrors.foreignOperand(placement, array.getShape());
                default:
            }
            if (PLAIN.contains(name)) {
                return result(call(method, plain), args, plain, null);
            }
            if (READ.contains(name)) {
                if (placement.isFollowed()) {
                    throw PlacementErrors.read(name, placement, array.getShape());
                }
                return call(method, plain);
            }
        } else if ("getArray".equals(name)) {
            return owner;
        }
        return compute(name, method, args, plain);
    }

    private Object ofObject(Object self, String name, Object[] args) {
        switch (name) {
            case "equals":
                return args[0] == self || raw.equals(unwrap(args[0]));
            case "hashCode":
                return raw.hashCode();
            default:
                return raw.toString();
        }
    }

    private @Nullable Object ofManager(Object self, Method method, Object[] args, Object[] plain)
            throws Throwable {
        String name = method.getName();
        boolean draws =
                name.startsWith("random") || name.startsWith("sample") || name.startsWith("trunc");
        Object result = draws ? drawn(method, plain, placement) : call(method, plain);
        if (result == raw) {
            return self;
        }
        if (result instanceof NDManager other) {
            return new PlacedArray(other, placement, pass).proxy(MANAGER);
        }
        return result(result, args, plain, Placement.CONSTANT);
    }

    private @Nullable Object compute(String name, Method method, Object[] args, Object[] plain)
            throws Throwable {
        List<PlacedOperation.Operand> operands = new ArrayList<>(3);
        boolean ofArguments = raw instanceof NDArrayEx && OF_ARGUMENTS.contains(name);
        Object whole = owner == null ? raw : array(owner);
        if (!ofArguments) {
            operands.add(new PlacedOperation.Operand(placement, (NDArray) whole, null, 0));
        }
        for (int i = 0; i < plain.length; i++) {
            collect(args[i], plain, i, operands);
        }
        PlacedOperation operation = new PlacedOperation(name, pass, operands, plain);
        Placement next = operation.placement();
        Object target = raw;
        if (!ofArguments && operation.first() != whole) {
            NDArray part = operation.first(); // of a whole that meets a shard
            target = raw instanceof NDArrayEx ? part.getNDArrayInternal() : part;
        }
        PlacedArray source = owner == null ? this : Objects.requireNonNull(handlerOf(owner));
        if ("copyTo".equals(name) && isGiven(args[0])) {
            throw PlacementErrors.changesBatch(name, ((NDArray) plain[0]).getShape());
        }
        if (operation.isInPlace()) {
            if (source.given) {
                throw PlacementErrors.changesBatch(name, ((NDArray) source.raw).getShape());
            }
            source.placement = next;
        }
        pass.note(name);
        Object result;
        if (operation.localIndex() != null) {
            result = ((NDArray) target).get(operation.localIndex());
        } else if (operation.parts() != null) {
            int axis = plain.length > 1 ? (Integer) plain[1] : 0;
            result = ((NDArray) target).split((long[]) plain[0], axis);
        } else if (operation.draws()) {
            result = drawn(method, plain, next);
        } else {
            result = call(target, method, plain);
        }
        Object placed;
        if (result instanceof NDList list) {
            NDList each = new NDList(list.size());
            for (int i = 0; i < list.size(); i++) {
                each.add(of(list.get(i), operation.ofElement(i, next), pass));
            }
            placed = each;
        } else {
            placed = result(result, args, plain, next);
        }
        if (source.given && operation.isView()) {
            NDList views = placed instanceof NDList all ? all : new NDList((NDArray) placed);
            views.forEach(view -> Objects.requireNonNull(handlerOf(view)).given = true);
        }
        return placed;
    }

    private static boolean isGiven(Object array) {
        PlacedArray handler = handlerOf(array);
        return handler != null && handler.given;
    }

    private void collect(
            @Nullable Object arg,
            Object[] plain,
            int index,
            List<PlacedOperation.Operand> operands) {
        if (arg instanceof NDArray array) {
            operands.add(operand(array, plain, index));
        } else if (arg instanceof NDList list) {
            NDList raws = (NDList) plain[index];
            Object[] each = new Object[raws.size()];
            for (int i = 0; i < each.length; i++) {
                operands.add(operand(list.get(i), each, i).in(raws));
            }
        } else if (arg instanceof NDArray[] all) {
            for (int i = 0; i < all.length; i++) {
                operands.add(operand(all[i], (Object[]) plain[index], i));
            }
        } else if (arg instanceof NDIndex chosen) { // its arrays stay the whole of a rank
            for (NDIndexElement element : chosen.getIndices()) {
                collect(arrayOf(element), new Object[1], 0, operands);
            }
        } else if (arg instanceof Object[] all) { // the arrays of an index that is written as text
            for (Object each : all) {
                collect(each, new Object[1], 0, operands);
            }
        }
    }

    private PlacedOperation.Operand operand(NDArray array, Object[] plain, int index) {
        PlacedArray handler = handlerOf(array);
        if (handler == null) {
            pass.checkForeign(array);
            return new PlacedOperation.Operand(Placement.CONSTANT, array, plain, index);
        }
        NDArray own = (NDArray) handler.raw;
        return new PlacedOperation.Operand(handler.placement, own, plain, index);
    }

    /** Calls what draws random numbers, which ranks that compute alike must not do. */
    private @Nullable Object drawn(Method method, Object[] plain, Placement at) throws Throwable {
        if (!pass.isGuarded(at)) {
            return call(method, plain);
        }
        boolean before = RandomDraws.isRefused();
        RandomDraws.setRefused(true);
        try {
            return call(method, plain);
        } finally {
            RandomDraws.setRefused(before);
        }
    }

    private @Nullable Object call(Method method, Object[] plain) throws Throwable {
        return call(raw, method, plain);
    }

    private static @Nullable Object call(Object target, Method method, Object[] plain)
            throws Throwable {
        try {
            return method.invoke(target, plain);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    /** Returns a result as the caller knows it: as what it has given, or with a placement. */
    private @Nullable Object result(
            @Nullable Object result, Object[] args, Object[] plain, @Nullable Placement next) {
        if (result == raw) {
            return own;
        }
        for (int i = 0; i < plain.length; i++) {
            if (result != null && result == plain[i] && result != args[i]) {
                return args[i]; // such as what a manager returns, or an in-place operation
            }
        }
        if (owner != null && result == array(owner)) {
            return owner;
        }
        if (result instanceof NDArray array) {
            return next == null ? array : of(array, next, pass);
        }
        if (result instanceof NDList list && next != null) {
            NDList placed = new NDList(list.size());
            list.forEach(each -> placed.add(of(each, next, pass)));
            return placed;
        }
        return result;
    }

    private static NDArray array(NDArray owner) {
        return DelegatedArray.unwrap(owner);
    }

    private static Object[] unwrapped(Object[] args) {
        Object[] plain = args.clone();
        for (int i = 0; i < plain.length; i++) {
            plain[i] = unwrap(plain[i]);
        }
        return plain;
    }

    private static Object unwrap(Object object) {
        if (object instanceof DelegatedArray placed) {
            return placed.getDelegate();
        }
        if (object instanceof NDList list) {
            NDList raws = new NDList(list.size());
            list.forEach(each -> raws.add(DelegatedArray.unwrap(each)));
            return raws;
        }
        if (object instanceof NDArray[] all) {
            return Arrays.stream(all).map(DelegatedArray::unwrap).toArray(NDArray[]::new);
        }
        if (object instanceof Object[] all
                && all.getClass() == Object[].class) { // of a text with places for arrays
            return Arrays.stream(all).map(PlacedArray::unwrap).toArray();
        }
        return object instanceof NDIndex index ? unwrap(index) : object;
    }

    private static NDIndex unwrap(NDIndex index) {
        if (index.stream().noneMatch(each -> arrayOf(each) != null)) {
            return index;
        }
        NDIndex raw = new NDIndex();
        List<NDIndexElement> elements = index.getIndices();
        for (int i = 0; i < elements.size(); i++) {
            if (i == index.getEllipsisIndex()) {
                raw.addEllipseDim();
            }
            NDIndexElement element = elements.get(i);
            NDArray array = arrayOf(element);
            if (array == null) {
                PlacedIndex.add(raw, element);
            } else if (element instanceof NDIndexBooleans) {
                raw.addBooleanIndex(DelegatedArray.unwrap(array));
            } else if (element instanceof NDIndexPick) {
                raw.addPickDim(DelegatedArray.unwrap(array));
            } else {
                raw.addIndices("{}", DelegatedArray.unwrap(array));
            }
        }
        return raw;
    }

    private static @Nullable NDArray arrayOf(NDIndexElement element) {
        if (element instanceof NDIndexPick pick) {
            return pick.getIndex();
        }
        if (element instanceof NDIndexTake take) {
            return take.getIndex();
        }
        return element instanceof NDIndexBooleans booleans ? booleans.getIndex() : null;
    }
}
