package io.djltp.spark.ml;

import java.io.Serializable;

/**
 * What the ranks have trained.
 *
 * @param parameters the network's parameters in DJL's format
 * @param losses the mean loss of each epoch's steps
 */
record TrainedNetwork(byte[] parameters, double[] losses) implements Serializable {}
