/** Contains the tests of how the processes of a job find each other. */
package io.djltp.job;
