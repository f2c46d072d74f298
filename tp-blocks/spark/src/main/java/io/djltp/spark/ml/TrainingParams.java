package io.djltp.spark.ml;

import org.apache.spark.ml.param.DoubleParam;
import org.apache.spark.ml.param.IntArrayParam;
import org.apache.spark.ml.param.IntParam;
import org.apache.spark.ml.param.LongParam;
import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.ParamValidators;
import org.apache.spark.ml.param.StringArrayParam;

/** How a classifier is trained. */
public interface TrainingParams extends PredictionParams, RunParams, HeadParams {

    /**
     * Returns the column with the labels: the numbers of the classes, from 0.
     *
     * @return the parameter; default label
     */
    default Param<String> labelCol() {
        return new Param<>(
                this, "labelCol", "the column with the labels: the numbers of the classes, from 0");
    }

    /**
     * Returns the value of {@link #labelCol}.
     *
     * @return the value
     */
    default String getLabelCol() {
        return getOrDefault(labelCol());
    }

    /**
     * Returns the number of classes: 0 for one more than the largest label that there is, or as
     * many as the label column has names.
     *
     * @return the parameter; default 0
     */
    default IntParam numClasses() {
        return new IntParam(
                this,
                "numClasses",
                "the number of classes: 0 for one more than the largest label that there is, or as"
                        + " many as the label column has names");
    }

    /**
     * Returns the value of {@link #numClasses}.
     *
     * @return the value
     */
    default int getNumClasses() {
        return (Integer) getOrDefault(numClasses());
    }

    /**
     * Returns the names of the classes: in their order. Without them those that a StringIndexer has
     * left with the label column, or the numbers.
     *
     * @return the parameter; default none
     */
    default StringArrayParam classNames() {
        return new StringArrayParam(
                this,
                "classNames",
                "the names of the classes: in their order. Without them those that a StringIndexer"
                        + " has left with the label column, or the numbers");
    }

    /**
     * Returns the value of {@link #classNames}.
     *
     * @return the value
     */
    default String[] getClassNames() {
        return getOrDefault(classNames());
    }

    /**
     * Returns the passes over the rows: 1 or more.
     *
     * @return the parameter; default 10
     */
    default IntParam epochs() {
        return new IntParam(
                this, "epochs", "the passes over the rows: 1 or more", ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #epochs}.
     *
     * @return the value
     */
    default int getEpochs() {
        return (Integer) getOrDefault(epochs());
    }

    /**
     * Returns the rows of a step: over all ranks, of which it is a multiple.
     *
     * @return the parameter; default 256
     */
    default IntParam batchSize() {
        return new IntParam(
                this, "batchSize", "the rows of a step: over all ranks, of which it is a multiple");
    }

    /**
     * Returns the value of {@link #batchSize}.
     *
     * @return the value
     */
    default int getBatchSize() {
        return (Integer) getOrDefault(batchSize());
    }

    /**
     * Returns the learning rate: above 0.
     *
     * @return the parameter; default 1e-3
     */
    default DoubleParam learningRate() {
        return new DoubleParam(
                this, "learningRate", "the learning rate: above 0", ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #learningRate}.
     *
     * @return the value
     */
    default double getLearningRate() {
        return (Double) getOrDefault(learningRate());
    }

    /**
     * Returns the optimizer: adam, adamw or sgd.
     *
     * @return the parameter; default adam
     */
    default Param<String> optimizer() {
        return new Param<>(this, "optimizer", "the optimizer: adam, adamw or sgd");
    }

    /**
     * Returns the value of {@link #optimizer}.
     *
     * @return the value
     */
    default String getOptimizer() {
        return getOrDefault(optimizer());
    }

    /**
     * Returns the smoothed part of the labels: from 0 to below 1.
     *
     * @return the parameter; default 0.0
     */
    default DoubleParam labelSmoothing() {
        return new DoubleParam(
                this, "labelSmoothing", "the smoothed part of the labels: from 0 to below 1");
    }

    /**
     * Returns the value of {@link #labelSmoothing}.
     *
     * @return the value
     */
    default double getLabelSmoothing() {
        return (Double) getOrDefault(labelSmoothing());
    }

    /**
     * Returns the seed: of the first weights, of the order of rows and of the classes that are
     * drawn.
     *
     * @return the parameter; default 42
     */
    default LongParam seed() {
        return new LongParam(
                this,
                "seed",
                "the seed: of the first weights, of the order of rows and of the classes that are"
                        + " drawn");
    }

    /**
     * Returns the value of {@link #seed}.
     *
     * @return the value
     */
    default long getSeed() {
        return (Long) getOrDefault(seed());
    }

    /**
     * Returns the units of hidden layers: with a ReLU behind each.
     *
     * @return the parameter; default none
     */
    default IntArrayParam hiddenLayers() {
        return new IntArrayParam(
                this, "hiddenLayers", "the units of hidden layers: with a ReLU behind each");
    }

    /**
     * Returns the value of {@link #hiddenLayers}.
     *
     * @return the value
     */
    default int[] getHiddenLayers() {
        return getOrDefault(hiddenLayers());
    }

    /**
     * Returns the class of a BodyFactory: which makes the blocks below the hidden layers.
     *
     * @return the parameter; default none
     */
    default Param<String> body() {
        return new Param<>(
                this,
                "body",
                "the class of a BodyFactory: which makes the blocks below the hidden layers");
    }

    /**
     * Returns the value of {@link #body}.
     *
     * @return the value
     */
    default String getBody() {
        return getOrDefault(body());
    }

    /**
     * Returns the arguments of the body: each name=value.
     *
     * @return the parameter; default none
     */
    default StringArrayParam bodyArguments() {
        return new StringArrayParam(
                this, "bodyArguments", "the arguments of the body: each name=value");
    }

    /**
     * Returns the value of {@link #bodyArguments}.
     *
     * @return the value
     */
    default String[] getBodyArguments() {
        return getOrDefault(bodyArguments());
    }

    /** Sets the defaults of all parameters. */
    default void setTrainingDefaults() {
        setPredictionDefaults();
        setRunDefaults();
        setHeadDefaults();
        setDefault(labelCol(), "label");
        setDefault(numClasses(), 0);
        setDefault(classNames(), new String[0]);
        setDefault(epochs(), 10);
        setDefault(batchSize(), 256);
        setDefault(learningRate(), 1e-3);
        setDefault(optimizer(), "adam");
        setDefault(labelSmoothing(), 0.0);
        setDefault(seed(), 42L);
        setDefault(hiddenLayers(), new int[0]);
        setDefault(body(), "");
        setDefault(bodyArguments(), new String[0]);
    }
}
