package io.djltp.checkpoint;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;

/**
 * Notices the signals by which a training is asked to stop. The first one is noted, for the
 * training to look at after its step; the second one ends the process at once, with the exit status
 * that it would have had.
 *
 * <p>A shutdown hook would not do: it cannot be told from an ordinary end, and after it has begun
 * no second signal is heard. The class {@code sun.misc.Signal} is in the module {@code
 * jdk.unsupported} of every JDK, and reached by reflection, because the compiler warns of it.
 */
final class StopSignals implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(StopSignals.class);

    private static final int SIGNALED = 128; // what a shell adds to the number of a signal

    private final List<Runnable> restore = new ArrayList<>();
    private final List<StopSignal> known = new ArrayList<>();
    private volatile StopSignal first;

    /**
     * Begins to listen.
     *
     * @param names the names of signals without SIG, such as TERM; empty for none
     */
    StopSignals(List<String> names) {
        for (String name : names) {
            try {
                restore.add(handle(name));
            } catch (ReflectiveOperationException e) {
                close();
                throw new IllegalArgumentException(
                        "This Java or system has no signal " + name + " to listen to", e);
            }
        }
    }

    /** Returns the first signal that came, or {@code null}. */
    StopSignal first() {
        return first;
    }

    /** Returns the signal by which another process of the job ends with a status. */
    StopSignal of(int exitStatus) {
        return known.stream().filter(each -> each.exitStatus() == exitStatus).findFirst().get();
    }

    /** Takes over a signal; returns what gives it back. */
    private Runnable handle(String name) throws ReflectiveOperationException {
        Class<?> type = Class.forName("sun.misc.Signal");
        Class<?> handlerType = Class.forName("sun.misc.SignalHandler");
        Object signal = type.getConstructor(String.class).newInstance(name);
        int number = (int) type.getMethod("getNumber").invoke(signal);
        StopSignal known = new StopSignal("SIG" + name, SIGNALED + number);
        this.known.add(known);
        Object handler =
                Proxy.newProxyInstance(
                        handlerType.getClassLoader(),
                        new Class<?>[] {handlerType},
                        (proxy, method, arguments) -> {
                            if (method.getDeclaringClass() == Object.class) {
                                return answer(proxy, method, arguments);
                            }
                            onSignal(known);
                            return null;
                        });
        Method handle = type.getMethod("handle", type, handlerType);
        Object before = handle.invoke(null, signal, handler);
        return () -> {
            try {
                handle.invoke(null, signal, before);
            } catch (ReflectiveOperationException e) {
                logger.warn("SIG{} cannot be given back", name, e);
            }
        };
    }

    /** What the proxy itself is asked. */
    private static Object answer(Object proxy, Method method, Object[] arguments) {
        switch (method.getName()) {
            case "equals":
                return proxy == arguments[0];
            case "hashCode":
                return System.identityHashCode(proxy);
            default:
                return "StopSignals";
        }
    }

    private synchronized void onSignal(StopSignal signal) {
        if (first != null) {
            logger.warn("{} after {}: the process ends at once", signal.name(), first.name());
            Runtime.getRuntime().halt(signal.exitStatus());
        }
        first = signal;
        logger.warn(
                "{}: training ends after this step, with a checkpoint. Another signal ends it at"
                        + " once",
                signal.name());
    }

    /** Gives the signals back to who had them. */
    @Override
    public void close() {
        restore.forEach(Runnable::run);
        restore.clear();
    }
}
