package io.djltp.parameters;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.initializer.Initializer;

import io.djltp.torch.RandomDraws;
import io.djltp.torch.RandomState;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Set;

/**
 * Runs an initializer once, and finds out whether it did nothing but fill an array of the shape
 * that it was asked for and return it untouched.
 *
 * <p>The initializer gets a manager that puts off its first such fill. The array that it returns
 * instead is filled for real as soon as anything else happens: when it is read, changed or handed
 * on, or when the manager is asked for something more. So an initializer that goes on computing
 * draws the numbers that it would draw otherwise, in the same order, and it need not run again,
 * which would draw some of them twice where it has a generator of its own.
 *
 * <p>What it cannot do with a stand-in, such as attaching an array to the manager, makes it run
 * once more, from the generator's state at the start, with the real manager.
 */
final class DeferredFill implements AutoCloseable {

    private static final Set<String> FILLS =
            Set.of("zeros", "ones", "full", "randomNormal", "randomUniform");

    private final NDManager manager;
    private final Shape shape;
    private Method fill;
    private Object[] arguments;
    private NDArray standIn; // of the array that is not filled yet
    private NDArray filled;
    private RandomState before; // what the fill has to start from

    DeferredFill(NDManager manager, Shape shape) {
        this.manager = manager;
        this.shape = shape;
    }

    /**
     * Runs an initializer.
     *
     * @param initializer the initializer
     * @param dataType the data type of the array
     * @return the values, or {@code null} if they are a fill that is still to be made by {@link
     *     #replay}, with nothing drawn since
     */
    NDArray run(Initializer initializer, DataType dataType) {
        try (RandomState start = RandomState.save()) {
            try {
                NDArray result =
                        initializer.initialize(
                                proxy(NDManager.class, this::onManager), shape, dataType);
                if (standIn == null || result != standIn) {
                    return result;
                }
                return filled == null && before.isPresent() ? null : whole();
            } catch (RuntimeException e) {
                // its own error, which it throws again, or something that only the engine's own
                // arrays and managers can do
                start.restore();
                return initializer.initialize(manager, shape, dataType);
            }
        }
    }

    /**
     * Makes a part of the fill.
     *
     * @param block the shape of the part
     * @return the part
     */
    NDArray replay(Shape block) {
        Object[] replayed = arguments.clone();
        for (int i = 0; i < replayed.length; i++) {
            if (shape.equals(replayed[i])) {
                replayed[i] = block;
            }
        }
        try {
            return (NDArray) call(fill, manager, replayed);
        } catch (RuntimeException e) {
            throw e;
        } catch (Throwable e) {
            throw new IllegalStateException("The fill " + fill + " failed", e);
        }
    }

    /** Returns a number that tells what will be filled on the CPU, the same for the same values. */
    long fingerprint() {
        StringBuilder text = new StringBuilder(fill.getName());
        for (Object argument : arguments) {
            text.append(argument instanceof Device ? "" : " " + argument);
        }
        boolean drawn = fill.getName().startsWith("random");
        return 31L * text.toString().hashCode() + (drawn ? RandomDraws.fingerprint() : 0);
    }

    private NDArray whole() {
        if (filled == null) {
            if (!before.isPresent()) {
                throw new IllegalStateException("Numbers were drawn that come after the fill");
            }
            filled = replay(shape);
        }
        return filled;
    }

    private Object onManager(Object proxy, Method method, Object... args) throws Throwable {
        if (standIn == null && FILLS.contains(method.getName()) && asksForShape(args)) {
            fill = method;
            arguments = args;
            before = RandomState.save();
            standIn = proxy(NDArray.class, this::onArray);
            return standIn;
        }
        if (NDManager.class.isAssignableFrom(method.getReturnType())) {
            // what is attached to this manager later could not be: stop before a number is drawn
            throw new UnsupportedOperationException("Not on a stand-in: " + method);
        }
        if (standIn != null) {
            whole();
        }
        return call(method, manager, args);
    }

    private Object onArray(Object proxy, Method method, Object... args) throws Throwable {
        return call(method, whole(), args);
    }

    private Object call(Method method, Object target, Object... args) throws Throwable {
        try {
            return method.invoke(target, unwrapped(args));
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    /** The engine takes no stand-ins. */
    private Object[] unwrapped(Object... args) {
        if (args == null || standIn == null) {
            return args;
        }
        Object[] result = args.clone();
        for (int i = 0; i < args.length; i++) {
            if (args[i] == standIn) {
                result[i] = whole();
            } else if (args[i] instanceof NDList) {
                NDList list = new NDList();
                ((NDList) args[i]).forEach(array -> list.add(array == standIn ? whole() : array));
                result[i] = list;
            }
        }
        return result;
    }

    private boolean asksForShape(Object... args) {
        if (args != null) {
            for (Object arg : args) {
                if (shape.equals(arg)) {
                    return true;
                }
            }
        }
        return false;
    }

    private static <T> T proxy(Class<T> type, InvocationHandler handler) {
        return type.cast(
                Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler));
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (before != null) {
            before.close();
        }
    }
}
