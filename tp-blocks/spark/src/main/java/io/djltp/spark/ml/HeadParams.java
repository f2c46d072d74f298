package io.djltp.spark.ml;

import org.apache.spark.ml.param.BooleanParam;
import org.apache.spark.ml.param.DoubleArrayParam;
import org.apache.spark.ml.param.DoubleParam;
import org.apache.spark.ml.param.LongParam;
import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.Params;

/** The head of a classifier, whose classes are cut over the ranks. */
public interface HeadParams extends Params {

    /**
     * Returns whether the head has a bias: not with a margin.
     *
     * @return the parameter; default true
     */
    default BooleanParam headBias() {
        return new BooleanParam(this, "headBias", "whether the head has a bias: not with a margin");
    }

    /**
     * Returns the value of {@link #headBias}.
     *
     * @return the value
     */
    default boolean getHeadBias() {
        return (Boolean) getOrDefault(headBias());
    }

    /**
     * Returns the arithmetic of the head: float32 or bfloat16.
     *
     * @return the parameter; default float32
     */
    default Param<String> headPrecision() {
        return new Param<>(
                this, "headPrecision", "the arithmetic of the head: float32 or bfloat16");
    }

    /**
     * Returns the value of {@link #headPrecision}.
     *
     * @return the value
     */
    default String getHeadPrecision() {
        return getOrDefault(headPrecision());
    }

    /**
     * Returns the share of the classes that a step computes with: above 0 and up to 1, all.
     *
     * @return the parameter; default 1.0
     */
    default DoubleParam headSampleShare() {
        return new DoubleParam(
                this,
                "headSampleShare",
                "the share of the classes that a step computes with: above 0 and up to 1, all");
    }

    /**
     * Returns the value of {@link #headSampleShare}.
     *
     * @return the value
     */
    default double getHeadSampleShare() {
        return (Double) getOrDefault(headSampleShare());
    }

    /**
     * Returns the bytes for logits on each rank: 0 for the default of ClassificationHead.
     *
     * @return the parameter; default 0
     */
    default LongParam headMemory() {
        return new LongParam(
                this,
                "headMemory",
                "the bytes for logits on each rank: 0 for the default of ClassificationHead");
    }

    /**
     * Returns the value of {@link #headMemory}.
     *
     * @return the value
     */
    default long getHeadMemory() {
        return (Long) getOrDefault(headMemory());
    }

    /**
     * Returns the standard deviation of the first weights of the head: 0 for the default of DJL.
     *
     * @return the parameter; default 0.0
     */
    default DoubleParam headSigma() {
        return new DoubleParam(
                this,
                "headSigma",
                "the standard deviation of the first weights of the head: 0 for the default of"
                        + " DJL");
    }

    /**
     * Returns the value of {@link #headSigma}.
     *
     * @return the value
     */
    default double getHeadSigma() {
        return (Double) getOrDefault(headSigma());
    }

    /**
     * Returns the margin of the head: scale, m1, m2 and m3 as io.djltp.head.Margin has them, or
     * nothing.
     *
     * @return the parameter; default none
     */
    default DoubleArrayParam headMargin() {
        return new DoubleArrayParam(
                this,
                "headMargin",
                "the margin of the head: scale, m1, m2 and m3 as io.djltp.head.Margin has them, or"
                        + " nothing");
    }

    /**
     * Returns the value of {@link #headMargin}.
     *
     * @return the value
     */
    default double[] getHeadMargin() {
        return getOrDefault(headMargin());
    }

    /** Sets the defaults of these parameters. */
    default void setHeadDefaults() {
        setDefault(headBias(), true);
        setDefault(headPrecision(), "float32");
        setDefault(headSampleShare(), 1.0);
        setDefault(headMemory(), 0L);
        setDefault(headSigma(), 0.0);
        setDefault(headMargin(), new double[0]);
    }
}
