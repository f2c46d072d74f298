package io.djltp.internal.libtorch;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.collective.local.LocalCommunicator;

import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.time.Duration;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/**
 * Uses a public class as the first thing in a JVM: makes its objects and calls its methods with
 * small arguments. Exceptions do not matter, only what the process has loaded in the end.
 */
final class FirstCallProbe {

    private final NDManager manager = NDManager.newBaseManager(); // DJL's: as in any program
    private int calls;

    private FirstCallProbe() {}

    public static void main(String[] args) throws Exception {
        Class<?> type = Class.forName(args[0]);
        FirstCallProbe probe = new FirstCallProbe();
        probe.callAll(type, null);
        Object made = probe.make(type, 2);
        if (made != null) {
            probe.callAll(type, made);
        }
        System.out.println("calls=" + probe.calls);
        System.out.println("libraries=" + LibTorch.loadedLibraries().size());
    }

    private void callAll(Class<?> type, Object target) {
        Method[] methods = type.getDeclaredMethods();
        Arrays.sort(methods, Comparator.comparing(Method::toString));
        for (Method method : methods) {
            int modifiers = method.getModifiers();
            if (Modifier.isPublic(modifiers)
                    && Modifier.isStatic(modifiers) == (target == null)
                    && !method.getName().equals("close")) {
                call(method, () -> method.invoke(target, arguments(method, 2)));
            }
        }
    }

    private Object make(Class<?> type, int depth) {
        if (depth == 0) {
            return null;
        }
        for (Constructor<?> constructor : type.getConstructors()) {
            Object made =
                    call(constructor, () -> constructor.newInstance(arguments(constructor, depth)));
            if (made != null) {
                return made;
            }
        }
        for (Method method : type.getDeclaredMethods()) {
            if (Modifier.isPublic(method.getModifiers())
                    && Modifier.isStatic(method.getModifiers())
                    && type.isAssignableFrom(method.getReturnType())) {
                Object made = call(method, () -> method.invoke(null, arguments(method, depth)));
                if (made != null) {
                    return made;
                }
            }
        }
        return null;
    }

    private Object call(Executable executable, Call call) {
        try {
            calls++;
            return call.run();
        } catch (InvocationTargetException e) {
            return null; // it has refused the arguments
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("" + executable, e);
        }
    }

    private Object[] arguments(Executable executable, int depth) {
        return Arrays.stream(executable.getParameterTypes())
                .map(type -> argument(type, depth))
                .toArray();
    }

    private Object argument(Class<?> type, int depth) {
        if (type.getName()
                .matches("io[.]djltp[.](internal[.])?(cut|head|region|torch|update)[.].*")) {
            return make(type, depth - 1);
        }
        return switch (type.getSimpleName()) {
            case "NDArray" -> manager.ones(new Shape(2, 2));
            case "NDManager" -> manager;
            case "Communicator" -> LocalCommunicator.create(1, Duration.ofSeconds(9)).get(0);
            case "DataType" -> DataType.FLOAT32;
            case "boolean" -> true;
            case "int" -> 1;
            case "long" -> 2L;
            case "float" -> 0.5f;
            case "double" -> 0.5;
            case "long[]" -> new long[] {0, 1};
            case "List" -> List.of();
            case "Duration" -> Duration.ofSeconds(9);
            default -> null;
        };
    }

    /** A call by reflection. */
    private interface Call {

        Object run() throws ReflectiveOperationException;
    }
}
