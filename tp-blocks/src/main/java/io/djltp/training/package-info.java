/** Contains the parallel trainer. */
package io.djltp.training;
