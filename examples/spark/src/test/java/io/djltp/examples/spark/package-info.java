/** Tests of the application, as it is submitted. */
package io.djltp.examples.spark;
