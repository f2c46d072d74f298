package io.djltp.spark.ml;

import org.apache.spark.ml.param.IntParam;
import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.ParamValidators;
import org.apache.spark.ml.param.Params;

/**
 * What a classifier and its model have in common: which columns they read and write.
 *
 * @param <T> the class that has them
 */
public interface PredictionParams<T extends PredictionParams<T>> extends Params {

    /**
     * Returns the column with the features: a vector, an array of float or double, or, for a body
     * that looks them up, an array of int.
     *
     * @return the parameter; default {@code features}
     */
    default Param<String> featuresCol() {
        return new Param<>(this, "featuresCol", "the column with the features");
    }

    /**
     * Returns the value of {@link #featuresCol}.
     *
     * @return the value
     */
    default String getFeaturesCol() {
        return getOrDefault(featuresCol());
    }

    /**
     * Sets the column with the features: a vector, an array of float or double, or of int.
     *
     * @param value the value
     * @return this
     */
    default T setFeaturesCol(String value) {
        return with(featuresCol(), value);
    }

    /**
     * Returns the column that the best class is written to, a double. An empty name leaves it out.
     *
     * @return the parameter; default {@code prediction}
     */
    default Param<String> predictionCol() {
        return new Param<>(this, "predictionCol", "the column for the best class");
    }

    /**
     * Returns the value of {@link #predictionCol}.
     *
     * @return the value
     */
    default String getPredictionCol() {
        return getOrDefault(predictionCol());
    }

    /**
     * Sets the column for the best class: a double. An empty name leaves it out.
     *
     * @param value the value
     * @return this
     */
    default T setPredictionCol(String value) {
        return with(predictionCol(), value);
    }

    /**
     * Returns the column that the best classes are written to: an array of (label, name,
     * probability), best first. An empty name leaves it out.
     *
     * @return the parameter; default {@code topClasses}
     */
    default Param<String> topClassesCol() {
        return new Param<>(this, "topClassesCol", "the column for the best classes");
    }

    /**
     * Returns the value of {@link #topClassesCol}.
     *
     * @return the value
     */
    default String getTopClassesCol() {
        return getOrDefault(topClassesCol());
    }

    /**
     * Sets the column for the best classes: with their names and probabilities. An empty name
     * leaves it out.
     *
     * @param value the value
     * @return this
     */
    default T setTopClassesCol(String value) {
        return with(topClassesCol(), value);
    }

    /**
     * Returns how many of the best classes are written.
     *
     * @return the parameter; default 5, or all classes if there are fewer
     */
    default IntParam topK() {
        return new IntParam(
                this, "topK", "how many of the best classes are written", ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #topK}.
     *
     * @return the value
     */
    default int getTopK() {
        return (Integer) getOrDefault(topK());
    }

    /**
     * Sets how many of the best classes are written: 1 or more.
     *
     * @param value the value
     * @return this
     */
    default T setTopK(int value) {
        return with(topK(), value);
    }

    private <V> T with(Param<V> param, V value) {
        set(param, value);
        @SuppressWarnings("unchecked")
        T self = (T) this;
        return self;
    }
}
