package io.djltp.gradient;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.parameters.ParallelParameters;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Which passes were watched: recorded completely, and looked at. Of an evaluation or a prediction
 * there is no graph otherwise, and none of what is frozen in training; so the first pass of each
 * shape of inputs is watched, for which a network may compute something else.
 *
 * <p>The number of shapes is limited: sequences that grow by one token at a time would all be
 * watched.
 */
public final class WatchedPasses {

    /** Of how many shapes of inputs passes are watched, in training and in evaluations each. */
    public static final int SHAPES = 64;

    private static final Logger logger = LoggerFactory.getLogger(WatchedPasses.class);

    private final ParallelParameters parameters;
    private final Set<Kind> kinds = new HashSet<>();

    /**
     * Passes that are taken to compute the same.
     *
     * @param training whether they are trained on
     * @param trained the parameters that are trained
     * @param shapes the shapes of the inputs, or {@code null} for those of all shapes
     */
    private record Kind(boolean training, Set<Parameter> trained, List<Shape> shapes) {

        Kind of(NDList data) {
            return new Kind(training, trained, List.of(data.getShapes()));
        }
    }

    WatchedPasses(ParallelParameters parameters) {
        this.parameters = parameters;
    }

    /**
     * Returns whether a pass has to be watched.
     *
     * @param training whether it is trained on
     * @param data the inputs
     * @return whether no pass like it was watched, and not too many others
     */
    public boolean isNew(boolean training, NDList data) {
        Kind any = kindOf(training);
        return !kinds.contains(any) || !kinds.contains(any.of(data)) && countOf(training) < SHAPES;
    }

    /**
     * Notes that nothing was found in a pass that was watched.
     *
     * @param training whether it was trained on
     * @param data the inputs
     */
    public void add(boolean training, NDList data) {
        Kind any = kindOf(training);
        kinds.add(any);
        if (kinds.add(any.of(data)) && countOf(training) == SHAPES) {
            logger.warn(
                    "{} of {} different input shapes have been checked; further shapes are not"
                            + " checked. You do not have to do anything if the network runs the"
                            + " same layers for every shape",
                    training ? "Forward passes" : "Evaluations",
                    SHAPES);
        }
    }

    private long countOf(boolean training) {
        return kinds.stream()
                .filter(kind -> kind.training() == training && kind.shapes() != null)
                .count();
    }

    private Kind kindOf(boolean training) {
        return new Kind(training, new HashSet<>(parameters.getTrained()), null);
    }
}
