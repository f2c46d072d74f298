package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.DataOutputStream;
import java.io.IOException;
import java.lang.ref.WeakReference;
import java.util.Map;
import java.util.WeakHashMap;

/**
 * Which parameters are in training by the ranks of an open {@link
 * io.djltp.training.ParallelTrainer}. A model in training looks like any other; where it is taken
 * for one, a wrong result is turned into an error.
 */
public final class HeldParameters {

    private static final Map<Parameter, Hold> HELD = new WeakHashMap<>();

    private HeldParameters() {}

    /** What the model holds in the meantime. */
    private enum State {
        /** The values of rank 0. */
        WHOLE,
        /** A placeholder: the ranks have a part each. */
        CUT,
        /** A placeholder: the ranks ended without giving their parts back. */
        LOST
    }

    private record Hold(
            State state,
            WeakReference<NDArray> array,
            WeakReference<WeightSource> source,
            @Nullable String why) {

        /** A file that was loaded meanwhile makes the parameter whole again. */
        boolean isPlaceholder(Parameter parameter) {
            return state != State.WHOLE
                    && parameter.isInitialized()
                    && parameter.getArray() == array.get();
        }
    }

    /**
     * Notes that ranks train a parameter.
     *
     * @param parameter the parameter
     * @param cut whether its array holds nothing meanwhile
     * @param source where its values are
     */
    public static void hold(Parameter parameter, boolean cut, WeightSource source) {
        put(parameter, cut ? State.CUT : State.WHOLE, source, null);
    }

    /**
     * Returns where the values of a parameter are while ranks train it.
     *
     * @param parameter the parameter
     * @return the source, or {@code null} if the parameter holds its values itself
     */
    public static @Nullable WeightSource sourceOf(Parameter parameter) {
        Hold hold = get(parameter);
        return hold == null ? null : hold.source.get();
    }

    /**
     * Saves the parameters of a block that has no children, as {@link Block#saveParameters} does it
     * after the version and the metadata. Those that ranks hold in shards are gathered one after
     * another.
     *
     * @param block the block
     * @param os where they go
     * @throws IOException if they cannot be written, or one is too large for DJL's format
     * @throws IllegalStateException if the values of one are lost
     */
    public static void save(Block block, DataOutputStream os) throws IOException {
        for (Parameter parameter : block.getDirectParameters().values()) {
            Hold hold = get(parameter);
            WeightSource source = hold == null ? null : hold.source.get();
            if (hold != null && source != null && hold.state == State.CUT) {
                source.save(parameter, os);
            } else {
                checkWhole(parameter, "What is saved of " + block.getClass().getSimpleName());
                parameter.save(os);
            }
        }
    }

    /**
     * Notes that the ranks that held a parameter have ended, and its values with them.
     *
     * @param parameter the parameter
     * @param why how that came, to follow "was lost"
     */
    public static void lose(Parameter parameter, String why) {
        put(parameter, State.LOST, null, why);
    }

    private static void put(
            Parameter parameter, State state, @Nullable WeightSource source, @Nullable String why) {
        synchronized (HELD) {
            // weak: a source knows the parameters, which are the keys of the map
            WeakReference<NDArray> array = new WeakReference<>(parameter.getArray());
            HELD.put(parameter, new Hold(state, array, new WeakReference<>(source), why));
        }
    }

    /**
     * Notes that the trainer is closed and the parameter has its values.
     *
     * @param parameter the parameter
     */
    public static void release(Parameter parameter) {
        synchronized (HELD) {
            HELD.remove(parameter);
        }
    }

    private static @Nullable Hold get(Parameter parameter) {
        synchronized (HELD) {
            return HELD.get(parameter);
        }
    }

    /**
     * Checks that a parameter has its values, for a computation outside of the trainer.
     *
     * @param parameter the parameter
     * @param user what wants to compute with it, as the first words of the error
     * @throws IllegalStateException if it has not
     */
    public static void checkWhole(Parameter parameter, String user) {
        Hold hold = get(parameter);
        boolean lost = hold != null && hold.state == State.LOST;
        boolean closed = isClosed(parameter);
        if (hold != null && hold.isPlaceholder(parameter) && (lost || !closed)) {
            throw new IllegalStateException(
                    lost
                            ? user
                                    + " needs the parameter "
                                    + nameOf(parameter)
                                    + ", which"
                                    + lost(hold)
                            : user
                                    + " needs the whole parameter "
                                    + nameOf(parameter)
                                    + ", and the ranks of an open ParallelTrainer or"
                                    + " ParallelPredictor hold a part each: use"
                                    + " trainer.evaluate(...)"
                                    + " or that predictor, or close it first, or save the model"
                                    + " and load that into another one");
        }
        if (closed) {
            throw Errors.state(
                    "%s needs the parameter %s, which was closed with its model: keep the model"
                            + " open, or load it again",
                    user, nameOf(parameter));
        }
    }

    /**
     * Checks that ranks can take a parameter: those of no open trainer or predictor hold it.
     *
     * @param name the parameter in the model
     * @param parameter the parameter
     * @throws IllegalStateException if others hold it
     */
    public static void checkFree(String name, Parameter parameter) {
        Hold hold = get(parameter);
        if (hold == null) {
            return;
        }
        if (hold.state != State.LOST) {
            throw Errors.state(
                    "Another open ParallelTrainer or ParallelPredictor of the model holds its"
                            + " parameter %s %s: close it first. A predictor can be shared by"
                            + " threads instead. (The ranks of a model that was loaded with a"
                            + " tensor_parallel_degree above 1 hold it too: load it with degree 1)",
                    name, parameter.getShape());
        }
        if (hold.isPlaceholder(parameter)) {
            throw new IllegalStateException("The parameter " + name + lost(hold));
        }
    }

    private static boolean isClosed(Parameter parameter) {
        return parameter.isInitialized()
                && parameter.getArray() instanceof NativeResource<?> array
                && array.isReleased();
    }

    private static String nameOf(Parameter parameter) {
        return parameter.getName() + " " + parameter.getShape();
    }

    private static String lost(Hold hold) {
        return " was lost "
                + hold.why
                + ": load the model again, with model.load(...), from where it was saved last";
    }
}
