/** Finds the best of many classes for an input, with a model that has been trained. */
package io.djltp.search;
