package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;

import io.djltp.sharding.ShardingStrategy;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Set;

/**
 * Initializes the shards of a parameter with the values that its initializer would give to the
 * whole, bit for bit, without ever holding the whole.
 *
 * <p>The initializer is run on a manager that only notes which fill it asks for (DJL's initializers
 * ask for one). The fill is then made in blocks of rows: libtorch's CPU generator draws in the
 * order of the elements, and its normal distribution in groups of 16 with a tail of its own, so
 * that blocks of a multiple of 16 elements, the tail in the last, are the same as one large draw.
 * An initializer that does anything else is run as it is, and its result is cut.
 */
final class ShardedInitializer implements Initializer {

    private static final Set<String> FILLS =
            Set.of("zeros", "ones", "full", "randomNormal", "randomUniform");

    /** Elements of a block: 16 MiB of float32. */
    private static final long BLOCK = 1 << 22;

    private static final long GROUP = 16;

    private final Initializer initializer;
    private final Parameter parameter;
    private final ParallelParameters parameters;

    ShardedInitializer(
            Initializer initializer, Parameter parameter, ParallelParameters parameters) {
        this.initializer = initializer;
        this.parameter = parameter;
        this.parameters = parameters;
    }

    /** {@inheritDoc} */
    @Override
    public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        strategy.checkSplit(parameter.getName(), shape, parameters.size());
        parameters.createShards(parameter, shape, dataType);
        NDArray placeholder = parameters.placeholder(shape, dataType);
        try (NDManager scope = manager.newSubManager()) {
            FillRecorder recorder = new FillRecorder(scope, shape, placeholder);
            if (recorder.isOnlyFill(initializer, dataType)) {
                fillBlocks(recorder, shape);
            } else {
                NDArray whole = initializer.initialize(scope, shape, dataType);
                parameters.scatterRows(parameter, whole, 0, shape);
            }
        }
        return placeholder;
    }

    private void fillBlocks(FillRecorder recorder, Shape shape) {
        long rows = shape.get(0);
        long rowSize = shape.size() / rows;
        long step = Math.max(GROUP, BLOCK / rowSize / GROUP * GROUP);
        for (long first = 0; first < rows; ) {
            long left = rows - first;
            // a last block of fewer than 16 elements would draw its tail alone
            long count = left < step + GROUP ? left : step;
            long[] block = shape.getShape().clone();
            block[0] = count;
            try (NDArray values = recorder.replay(new Shape(block))) {
                parameters.scatterRows(parameter, values, first, shape);
            }
            first += count;
        }
    }

    /** A manager that notes the one fill an initializer asks for. */
    private static final class FillRecorder implements InvocationHandler {

        private final NDManager manager;
        private final Shape shape;
        private final NDArray placeholder;
        private Method fill;
        private Object[] arguments;

        FillRecorder(NDManager manager, Shape shape, NDArray placeholder) {
            this.manager = manager;
            this.shape = shape;
            this.placeholder = placeholder;
        }

        boolean isOnlyFill(Initializer initializer, DataType dataType) {
            NDManager recorder =
                    (NDManager)
                            Proxy.newProxyInstance(
                                    NDManager.class.getClassLoader(),
                                    new Class<?>[] {NDManager.class},
                                    this);
            try {
                return initializer.initialize(recorder, shape, dataType) == placeholder;
            } catch (RuntimeException e) {
                return false; // it wanted more than the placeholder can do: run it as it is
            }
        }

        NDArray replay(Shape block) {
            Object[] replayed = arguments.clone();
            for (int i = 0; i < replayed.length; i++) {
                if (shape.equals(replayed[i])) {
                    replayed[i] = block;
                }
            }
            try {
                return (NDArray) fill.invoke(manager, replayed);
            } catch (IllegalAccessException | InvocationTargetException e) {
                throw new IllegalStateException("The fill " + fill + " failed", e);
            }
        }

        /** {@inheritDoc} */
        @Override
        public Object invoke(Object proxy, Method method, Object[] args) throws Throwable {
            if (fill == null && FILLS.contains(method.getName()) && asksForShape(args)) {
                fill = method;
                arguments = args;
                return placeholder;
            }
            try {
                return method.invoke(manager, args);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        }

        private boolean asksForShape(Object[] args) {
            if (args != null) {
                for (Object arg : args) {
                    if (shape.equals(arg)) {
                        return true;
                    }
                }
            }
            return false;
        }
    }
}
