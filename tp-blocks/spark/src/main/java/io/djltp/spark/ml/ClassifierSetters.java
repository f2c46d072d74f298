package io.djltp.spark.ml;

/** The setters of a {@link ParallelClassifier} for what it learns. */
abstract class ClassifierSetters extends RunSetters {

    private static final long serialVersionUID = 1L;

    /**
     * Sets the column with the labels: the numbers of the classes, from 0.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setLabelCol(String value) {
        set(labelCol(), value);
        return self();
    }

    /**
     * Sets the number of classes: 0 for one more than the largest label that there is, or as many
     * as the label column has names.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setNumClasses(int value) {
        set(numClasses(), value);
        return self();
    }

    /**
     * Sets the names of the classes: in their order. Without them those that a StringIndexer has
     * left with the label column, or the numbers.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setClassNames(String... value) {
        set(classNames(), value);
        return self();
    }

    /**
     * Sets the passes over the rows: 1 or more.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setEpochs(int value) {
        set(epochs(), value);
        return self();
    }

    /**
     * Sets the rows of a step: over all ranks, of which it is a multiple.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setBatchSize(int value) {
        set(batchSize(), value);
        return self();
    }

    /**
     * Sets the learning rate: above 0.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setLearningRate(double value) {
        set(learningRate(), value);
        return self();
    }

    /**
     * Sets the optimizer: adam, adamw or sgd.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setOptimizer(String value) {
        set(optimizer(), value);
        return self();
    }

    /**
     * Sets the smoothed part of the labels: from 0 to below 1.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setLabelSmoothing(double value) {
        set(labelSmoothing(), value);
        return self();
    }

    /**
     * Sets the seed: of the first weights, of the order of rows and of the classes that are drawn.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setSeed(long value) {
        set(seed(), value);
        return self();
    }

    /**
     * Sets the units of hidden layers: with a ReLU behind each.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHiddenLayers(int... value) {
        set(hiddenLayers(), value);
        return self();
    }

    /**
     * Sets the class of a BodyFactory: which makes the blocks below the hidden layers.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setBody(String value) {
        set(body(), value);
        return self();
    }

    /**
     * Sets the arguments of the body: each name=value.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setBodyArguments(String... value) {
        set(bodyArguments(), value);
        return self();
    }

    /**
     * Sets whether the head has a bias: not with a margin.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadBias(boolean value) {
        set(headBias(), value);
        return self();
    }

    /**
     * Sets the arithmetic of the head: float32 or bfloat16.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadPrecision(String value) {
        set(headPrecision(), value);
        return self();
    }

    /**
     * Sets the share of the classes that a step computes with: above 0 and up to 1, all.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadSampleShare(double value) {
        set(headSampleShare(), value);
        return self();
    }

    /**
     * Sets the bytes for logits on each rank: 0 for the default of ClassificationHead.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadMemory(long value) {
        set(headMemory(), value);
        return self();
    }

    /**
     * Sets the standard deviation of the first weights of the head: 0 for the default of DJL.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadSigma(double value) {
        set(headSigma(), value);
        return self();
    }

    /**
     * Sets the margin of the head: scale, m1, m2 and m3 as io.djltp.head.Margin has them, or
     * nothing.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadMargin(double... value) {
        set(headMargin(), value);
        return self();
    }

    /**
     * Sets the column with the features: a vector, an array of float or double, or of int.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setFeaturesCol(String value) {
        set(featuresCol(), value);
        return self();
    }

    /**
     * Sets the column for the best class: a double. An empty name leaves it out.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setPredictionCol(String value) {
        set(predictionCol(), value);
        return self();
    }

    /**
     * Sets the column for the best classes: with their names and probabilities. An empty name
     * leaves it out.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setTopClassesCol(String value) {
        set(topClassesCol(), value);
        return self();
    }

    /**
     * Sets how many of the best classes the model writes: 1 or more.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setTopK(int value) {
        set(topK(), value);
        return self();
    }
}
