package io.djltp.internal.job;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.function.IntConsumer;

/**
 * Listens to a signal of the operating system instead of the JVM, until it is closed.
 *
 * <p>A shutdown hook would not do: it cannot be told from an ordinary end, and after it has begun
 * no second signal is heard. The class {@code sun.misc.Signal} is in the module {@code
 * jdk.unsupported} of every JDK, and reached by reflection, because the compiler warns of it.
 */
public final class SignalListener implements AutoCloseable {

    private final String name;
    private final Object signal;
    private final int number;
    private final Method handle;
    private final Object before;

    /**
     * Takes a signal over.
     *
     * @param name its name, such as {@code TERM}
     * @param heard gets its number, in a thread of the JVM, each time it comes
     * @throws IllegalArgumentException if this Java or system has no such signal
     */
    public SignalListener(String name, IntConsumer heard) {
        this.name = name;
        try {
            Class<?> type = Class.forName("sun.misc.Signal");
            Class<?> handlerType = Class.forName("sun.misc.SignalHandler");
            signal = type.getConstructor(String.class).newInstance(name);
            number = (int) type.getMethod("getNumber").invoke(signal);
            handle = type.getMethod("handle", type, handlerType);
            InvocationHandler handler =
                    (proxy, method, arguments) -> {
                        heard.accept(number());
                        return null;
                    };
            ClassLoader loader = SignalListener.class.getClassLoader();
            before =
                    handle.invoke(
                            null,
                            signal,
                            Proxy.newProxyInstance(loader, new Class<?>[] {handlerType}, handler));
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException(
                    "This Java or system has no signal " + name + " to listen to", e);
        }
    }

    /**
     * Returns the number of the signal.
     *
     * @return the number, to which a shell adds 128 for the exit status of what it ends
     */
    public int number() {
        return number;
    }

    /** Gives the signal back to who had it. */
    @Override
    public void close() {
        try {
            handle.invoke(null, signal, before);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("SIG" + name + " cannot be given back", e);
        }
    }
}
