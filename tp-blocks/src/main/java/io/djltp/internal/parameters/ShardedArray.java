package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import org.jspecify.annotations.Nullable;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.function.Supplier;

/**
 * Stands for an array whose slices lie on the ranks: it has a shape, a type and a device. To be
 * computed with it has to be made whole, if it can be; else it refuses, because a result on one
 * slice would be wrong without a sign of it.
 */
public final class ShardedArray implements InvocationHandler {

    private final NDArray slice;
    private final Shape shape;
    private final boolean ofHead;
    private final @Nullable Supplier<NDArray> maker; // null if it cannot be made whole
    private final Object owner;
    private @Nullable NDArray whole; // once it was asked for

    private ShardedArray(
            NDArray slice,
            Shape shape,
            boolean ofHead,
            @Nullable Supplier<NDArray> maker,
            Object owner) {
        this.slice = slice;
        this.shape = shape;
        this.ofHead = ofHead;
        this.maker = maker;
        this.owner = owner;
    }

    /**
     * Creates a stand-in.
     *
     * @param slice one of the slices
     * @param shape the shape of the whole
     * @param ofHead whether the slices are the features of a fused head, instead of logits
     * @param maker makes the whole when it is computed with, or {@code null} to refuse that
     * @param owner what has all slices, see {@link #ownerOf}
     * @return the stand-in
     */
    public static NDArray of(
            NDArray slice,
            Shape shape,
            boolean ofHead,
            @Nullable Supplier<NDArray> maker,
            Object owner) {
        return (NDArray)
                Proxy.newProxyInstance(
                        NDArray.class.getClassLoader(),
                        new Class<?>[] {NDArray.class},
                        new ShardedArray(slice, shape, ofHead, maker, owner));
    }

    /**
     * Returns whether an array is a stand-in.
     *
     * @param array an array
     * @return whether {@link #of} has made it
     */
    public static boolean isStandIn(NDArray array) {
        return Proxy.isProxyClass(array.getClass())
                && Proxy.getInvocationHandler(array) instanceof ShardedArray;
    }

    /**
     * Returns what has all slices of an array.
     *
     * @param array an array
     * @return what {@link #of} was given, or {@code null} if the array is no stand-in
     */
    public static @Nullable Object ownerOf(NDArray array) {
        return isStandIn(array) ? ((ShardedArray) Proxy.getInvocationHandler(array)).owner : null;
    }

    /** {@inheritDoc} */
    @Override
    public @Nullable Object invoke(Object proxy, Method method, Object @Nullable [] args)
            throws Throwable {
        switch (method.getName()) {
            case "getShape":
                return shape;
            case "size":
                return args == null ? shape.size() : shape.get((Integer) args[0]);
            case "equals":
                return args != null && proxy == args[0];
            case "hashCode":
                return System.identityHashCode(proxy);
            case "toString":
                return "ND: " + shape + " " + slice.getDataType() + " (" + where() + ")";
            case "getDataType":
            case "getDevice":
            case "getManager":
            case "getName":
            case "getUid":
                return ask(slice, method, args);
            case "attach":
            case "detach":
            case "tempAttach":
            case "returnResource":
            case "setName":
            case "close":
                return null; // the slices belong to the ranks' output
            default:
                if (maker != null) {
                    return ask(whole(maker), method, args);
                }
                throw refusal(method);
        }
    }

    private String where() {
        return ofHead ? "those of a fused head, which never has them whole" : "cut over the ranks";
    }

    private UnsupportedOperationException refusal(Method method) {
        return new UnsupportedOperationException(
                ("The predictions %s are %s%s in training, and cannot be used in %s()."
                                + " Use VocabParallelCrossEntropyLoss and VocabParallelAccuracy,"
                                + " read the output of trainer.evaluate(...), or let a"
                                + " ColumnParallelLinear with optGatherOutput(true) be the last"
                                + " layer.")
                        .formatted(shape, where(), ofHead ? "" : " by class", method.getName()));
    }

    private synchronized NDArray whole(Supplier<NDArray> made) {
        if (whole == null) {
            whole = made.get();
        }
        return whole;
    }

    private static @Nullable Object ask(NDArray array, Method method, Object @Nullable [] args)
            throws Throwable {
        try {
            return method.invoke(array, args);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }
}
