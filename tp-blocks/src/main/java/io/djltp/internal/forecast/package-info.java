/**
 * Contains what a training step will communicate, as blocks and losses say it from shapes alone.
 */
package io.djltp.internal.forecast;
