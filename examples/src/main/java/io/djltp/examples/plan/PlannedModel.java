package io.djltp.examples.plan;

import io.djltp.examples.OptimizerName;

import java.io.IOException;
import java.util.List;
import java.util.Set;

/** A model that {@code tp plan} knows: a new one is a class, and a line in {@link #ALL}. */
interface PlannedModel {

    /** All of them. */
    List<PlannedModel> ALL =
            List.of(new LemmatiserModel(), new MiniLmModel(), new LmModel(), new ResnetModel());

    /** Returns the name on the command line. */
    String getName();

    /** Returns what it is, in one line. */
    String getDescription();

    /** Returns the options that say something of it, beside those of every plan. */
    Set<String> getOptions();

    /** Returns the usual number of rows of a batch. */
    int getBatch();

    /** Returns what it is usually trained by, or {@code null} if it is not trained. */
    OptimizerName getOptimizer();

    /**
     * Returns the network.
     *
     * @param options its sizes
     * @param batch the rows of a batch
     * @throws IOException if something cannot be read that sizes follow from
     */
    Planned create(PlanOptions options, int batch) throws IOException;
}
